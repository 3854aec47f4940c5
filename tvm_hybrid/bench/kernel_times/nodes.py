"""Nodes: a kernel as loops, branches, and the instructions between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import tvm
from tvm import DataType, s_tir, tirx
from tvm.target import Target, codegen

from .index import Environment, Index


@dataclass(frozen=True)
class Memory:
    """An array that a kernel reads or writes.

    Attributes
    ----------
    name : str
        Name in the kernel.
    parameter : int
        Position among the parameters; negative for an array of the kernel's own.
    size : int
        Bytes.
    shared : bool
        Whether all threads share the array.
    """

    name: str
    parameter: int
    size: int
    shared: bool = True


@dataclass(frozen=True)
class Access:
    """Bytes that one instruction reads or writes.

    Attributes
    ----------
    memory : Memory
        The array.
    start : Index
        The first byte.
    width : int
        Bytes of a piece.
    pieces, stride : int
        Number of pieces, and bytes from one to the next.
    store : bool
        Whether the access writes.
    """

    memory: Memory
    start: Index
    width: int
    pieces: int = 1
    stride: int = 0
    store: bool = False


@dataclass
class Work:
    """Instructions without a loop around them.

    Attributes
    ----------
    counts : Counter of str
        Number of instructions by kind; "products" are scalar multiply-adds.
    accesses : list of Access
        Accesses to memory.
    chains : set of (int, int)
        Lengths of dependent chains (multiply-adds, other operations): each operation waits for the
        one before, and the first one for the last of the previous iteration.
    """

    counts: Counter[str] = field(default_factory=Counter)
    accesses: list[Access] = field(default_factory=list)
    chains: set[tuple[int, int]] = field(default_factory=set)


@dataclass(eq=False)
class Body:
    """Instructions, with the loops and branches among them in order."""

    work: Work = field(default_factory=Work)
    children: list[Loop | Branch] = field(default_factory=list)

    @cached_property
    def controls(self) -> frozenset[int]:
        """Outer loops that decide how often parts of this body run."""
        return frozenset[int]().union(*(child.controls for child in self.children))


@dataclass(eq=False)
class Loop:
    """A loop that starts from 0.

    Attributes
    ----------
    number : int
        Identifies the loop.
    extent : Index
        Number of iterations.
    parallel : bool
        Whether iterations are spread over threads.
    body : Body
        The loop's body.
    anew : bool
        Whether the registers that the loop changes are initialised before it, so that iterations of
        the loop around do not depend on each other through them.
    """

    number: int
    extent: Index
    parallel: bool
    body: Body
    anew: bool = False

    @property
    def controls(self) -> frozenset[int]:
        """Outer loops that decide how often parts of this loop run."""
        return self.extent.loops | (self.body.controls - {self.number})


@dataclass(eq=False)
class Branch:
    """Two bodies, chosen by a condition."""

    condition: Index
    then: Body
    otherwise: Body

    @property
    def controls(self) -> frozenset[int]:
        """Outer loops that decide how often parts of this branch run."""
        return self.condition.loops | self.then.controls | self.otherwise.controls

    def taken(self, environment: Environment) -> Body:
        """The body that runs for given loop variables; `otherwise` if that depends on data."""
        holds = self.condition.known and self.condition.evaluate(environment)
        return self.then if holds else self.otherwise


Found = TypeVar("Found")


class Walk(ABC, Generic[Found]):
    """Walks over a kernel's loops; results are cached by body and the loop variables it needs."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...]], tuple[Body, Found]] = {}

    def body(self, body: Body, environment: Environment) -> Found:
        """Result for a body, given the variables of the loops around it."""
        key = id(body), tuple(environment[loop] for loop in sorted(body.controls))
        if key not in self._known:
            self._known[key] = body, self.inside(body, environment)
        return self._known[key][1]

    def child(self, child: Loop | Branch, environment: Environment) -> Found:
        """Result for a loop or a branch."""
        if isinstance(child, Branch):
            return self.body(child.taken(environment), environment)
        return self.loop(child, child.extent.evaluate(environment), environment)

    @abstractmethod
    def inside(self, body: Body, environment: Environment) -> Found:
        """Computes the result for a body."""

    @abstractmethod
    def loop(self, loop: Loop, count: int, environment: Environment, first: int = 0) -> Found:
        """Result for `count` iterations of a loop, from `first` on."""


@dataclass(frozen=True)
class KernelLoops:
    """A kernel as loops and counted instructions.

    Attributes
    ----------
    name : str
        Name of the function.
    body : Body
        The function's body.
    parameters : tuple of Memory
        Parameters by position.
    """

    name: str
    body: Body
    parameters: tuple[Memory, ...]


# Parts of intrinsics' names, and the kinds of instructions; the first match counts.
_INTRINSICS = (
    ("x86.tdp", "tile_product"),
    ("dpbf16", "bf16"),
    *((each, "dot") for each in ("dpbusd", "dpwssd", "pmaddubs", "pmadd.ubs", "pmaddw")),
    ("tileload", "tile_load"),
    ("tilestore", "tile_store"),
    ("tilezero", "tile_zero"),
    ("tilerelease", "tile_release"),
    ("amx_configure", "tile_configure"),
    ("amx_permi", "permission"),
    ("hybrid_arrive", "arrival"),
    ("prefetch", "prefetch"),
    ("sqrt", "divide"),
    ("fma", "fma"),
)
LIBRARY = ("tirx.exp", "tirx.log", "tirx.tanh", "tirx.erf", "tirx.pow", "tirx.sigmoid", "tirx.sin")


def kind_of(name: str) -> str:
    """Kind of an intrinsic or external function; unknown ones count as vector instructions."""
    return next((kind for part, kind in _INTRINSICS if part in name), "vector")


Chain = tuple[int, int, int]  # the loop, multiply-adds, other operations


@dataclass(frozen=True, eq=False)
class Value:
    """A value: the loops that it depends on, and the longest dependent chain up to it."""

    number: int
    loops: frozenset[int] = frozenset()
    chain: Chain | None = None
    constant: bool = False


@dataclass(eq=False)
class Scope:
    """A loop, a branch, or the whole function, while it is being read."""

    body: Body
    loop: int = -1
    fixed: bool = True  # whether values cannot be hoisted out of it
    values: dict[Any, Value] = field(default_factory=dict)
    stored: frozenset[Any] = frozenset()


class Scopes:
    """The loops and branches around the current statement, and the values computed in each."""

    def __init__(self, body: Body) -> None:
        self.stack = [Scope(body)]
        self._numbers = 0

    @property
    def inner(self) -> Scope:
        """The innermost scope."""
        return self.stack[-1]

    def loop(self) -> int:
        """Number of the innermost loop; -1 outside of loops."""
        return next((scope.loop for scope in reversed(self.stack) if scope.loop >= 0), -1)

    def new(
        self, loops: frozenset[int], chain: Chain | None = None, constant: bool = False
    ) -> Value:
        """Makes a new value."""
        self._numbers += 1
        return Value(self._numbers, loops, chain, constant)

    def known(self, name: Any) -> Value | None:
        """Finds a value that was computed before and is still available; None if there is none."""
        there = (scope.values[name] for scope in reversed(self.stack) if name in scope.values)
        return next(there, None)

    def place_of(self, loops: frozenset[int]) -> Scope:
        """The scope in which a value that depends on these loops is computed."""
        places = (each for each in reversed(self.stack) if each.fixed or each.loop in loops)
        return next(places, self.stack[0])

    def chain(self, operands: list[Value], kind: str) -> Chain | None:
        """Extends the longest chain of the operands by one operation."""
        loop = self.loop()
        chains = [each.chain for each in operands if each.chain and each.chain[0] == loop]
        if not chains:
            return None
        _, products, others = max(chains, key=lambda chain: (chain[1] + chain[2], chain))
        if kind in ("fma", "dot", "bf16"):
            return loop, products + 1, others
        return loop, products, others + (1 if kind else 0)


def lowered(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Lowers a function to flat arrays and explicit vectors, with unrolled loops written out."""
    function = function.with_attr("target", target)
    transform, general = s_tir.transform, tirx.transform
    passes = [
        transform.CanonicalizeLoop(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
        transform.LowerMatchBuffer(),
        transform.LowerOpaqueBlock(),
        general.FlattenBuffer(),
        general.BF16ComputeLegalize(),
        general.VectorizeLoop(True),
        general.UnrollLoop(),
    ]
    with target, tvm.ir.transform.PassContext(opt_level=3):
        module = tvm.ir.transform.Sequential(passes)(tvm.IRModule({"kernel": function}))
    return module["kernel"]


def base_of(node: tirx.DeclBuffer) -> Any:
    """The array that a view refers to."""
    data: Any = node.data
    while getattr(getattr(data, "op", None), "name", "") == "tirx.buffer_data":
        data = data.args[0]
    return data


def is_constant(index: Any) -> bool:
    """Whether an index depends on no variable."""
    if type(index).__name__ == "Ramp":
        index = index.base
    if type(index).__name__ in ("Broadcast", "Cast"):
        index = index.value
    if type(index).__name__ in ("Add", "Mul", "Sub", "FloorDiv", "FloorMod"):
        return is_constant(index.a) and is_constant(index.b)
    return type(index).__name__ == "IntImm"


def size_of(var: Any) -> int:
    """Bytes of an array."""
    dtype = DataType(str(var.dtype))
    size = (int(dtype.bits) * int(dtype.lanes) + 7) // 8
    for extent in var.ty.shape:
        size *= int(extent.value) if hasattr(extent, "value") else 1
    return size


def intrinsic(node: Any) -> str:
    """Name of the intrinsic or function that a call calls."""
    first = node.args[0]
    if type(first).__name__ == "StringImm":
        return str(first.value)
    return str(codegen.llvm_get_intrinsic_name(int(first.value)))
