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
        In the kernel.
    parameter : int
        Which parameter it is; -1 if it is the kernel's own.
    size : int
        Bytes.
    shared : bool
        Whether threads see the same one.
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
        Where.
    start : Index
        The first byte.
    width : int
        Bytes of a piece.
    pieces, stride : int
        How many pieces, and bytes from one to the next.
    store : bool
        Whether it writes.
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
        Instructions by kind; "products" are single multiplications with a sum.
    accesses : list of Access
        To memory.
    chains : set of (int, int)
        Multiply-adds, and other operations, of which each waits for the one before, and the first
        one for the last of the round before.
    """

    counts: Counter[str] = field(default_factory=Counter)
    accesses: list[Access] = field(default_factory=list)
    chains: set[tuple[int, int]] = field(default_factory=set)


@dataclass(eq=False)
class Body:
    """Instructions, and the loops and branches among them, in their order."""

    work: Work = field(default_factory=Work)
    children: list[Loop | Branch] = field(default_factory=list)

    @cached_property
    def controls(self) -> frozenset[int]:
        """The loops outside on which it depends how often something in here runs."""
        return frozenset[int]().union(*(child.controls for child in self.children))


@dataclass(eq=False)
class Loop:
    """A loop from 0 on.

    Attributes
    ----------
    number : int
        Its name.
    extent : Index
        How many rounds it has.
    parallel : bool
        Whether threads share them.
    body : Body
        What a round does.
    anew : bool
        Whether registers that its rounds change have other values before it, which do not depend
        on what it made of them in the round before of the loop around.
    """

    number: int
    extent: Index
    parallel: bool
    body: Body
    anew: bool = False

    @property
    def controls(self) -> frozenset[int]:
        """The loops outside on which it depends how often something in here runs."""
        return self.extent.loops | (self.body.controls - {self.number})


@dataclass(eq=False)
class Branch:
    """What runs if a condition holds, and what else."""

    condition: Index
    then: Body
    otherwise: Body

    @property
    def controls(self) -> frozenset[int]:
        """The loops outside on which it depends how often something in here runs."""
        return self.condition.loops | self.then.controls | self.otherwise.controls

    def taken(self, environment: Environment) -> Body:
        """What runs for some values of the loops around; what else if that depends on data."""
        holds = self.condition.known and self.condition.evaluate(environment)
        return self.then if holds else self.otherwise


Found = TypeVar("Found")


class Walk(ABC, Generic[Found]):
    """Follows a kernel's loops; what a body comes to is found once for the same values around."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...]], tuple[Body, Found]] = {}

    def body(self, body: Body, environment: Environment) -> Found:
        """Of instructions, loops and branches, for some values of the loops around them."""
        key = id(body), tuple(environment[loop] for loop in sorted(body.controls))
        if key not in self._known:
            self._known[key] = body, self.inside(body, environment)
        return self._known[key][1]

    def child(self, child: Loop | Branch, environment: Environment) -> Found:
        """Of a loop, or of a branch."""
        if isinstance(child, Branch):
            return self.body(child.taken(environment), environment)
        return self.loop(child, child.extent.evaluate(environment), environment)

    @abstractmethod
    def inside(self, body: Body, environment: Environment) -> Found:
        """What `body` returns, found anew."""

    @abstractmethod
    def loop(self, loop: Loop, count: int, environment: Environment, first: int = 0) -> Found:
        """Of some rounds of a loop."""


@dataclass(frozen=True)
class Program:
    """A kernel.

    Attributes
    ----------
    name : str
        Of its function.
    body : Body
        What it does.
    parameters : tuple of Memory
        By position.
    """

    name: str
    body: Body
    parameters: tuple[Memory, ...]


# Pieces of names of intrinsics, and what they are; the first that fits.
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
    """The kind of an intrinsic or of a function of ours; any other one works on vectors."""
    return next((kind for part, kind in _INTRINSICS if part in name), "vector")


Chain = tuple[int, int, int]  # the loop, multiply-adds, other operations


@dataclass(frozen=True, eq=False)
class Value:
    """What an expression yields: on which loops it depends, and how long a chain leads to it."""

    number: int
    loops: frozenset[int] = frozenset()
    chain: Chain | None = None
    constant: bool = False


@dataclass(eq=False)
class Scope:
    """A loop, a branch, or the whole function, while it is read."""

    body: Body
    loop: int = -1
    fixed: bool = True  # whether nothing moves out of it
    values: dict[Any, Value] = field(default_factory=dict)
    stored: frozenset[Any] = frozenset()


class Scopes:
    """The loops and branches around what is being read, and the values computed in each."""

    def __init__(self, body: Body) -> None:
        self.stack = [Scope(body)]
        self._numbers = 0

    @property
    def inner(self) -> Scope:
        """The innermost one."""
        return self.stack[-1]

    def loop(self) -> int:
        """The innermost loop; -1 if there is none."""
        return next((scope.loop for scope in reversed(self.stack) if scope.loop >= 0), -1)

    def new(
        self, loops: frozenset[int], chain: Chain | None = None, constant: bool = False
    ) -> Value:
        """A value that there was not before."""
        self._numbers += 1
        return Value(self._numbers, loops, chain, constant)

    def known(self, name: Any) -> Value | None:
        """A value that was computed before and still is there."""
        there = (scope.values[name] for scope in reversed(self.stack) if name in scope.values)
        return next(there, None)

    def place_of(self, loops: frozenset[int]) -> Scope:
        """Where a value that depends on some loops is computed."""
        places = (each for each in reversed(self.stack) if each.fixed or each.loop in loops)
        return next(places, self.stack[0])

    def chain(self, operands: list[Value], kind: str) -> Chain | None:
        """The longest chain that leads through operands, by one operation longer."""
        loop = self.loop()
        chains = [each.chain for each in operands if each.chain and each.chain[0] == loop]
        if not chains:
            return None
        _, products, others = max(chains, key=lambda chain: (chain[1] + chain[2], chain))
        if kind in ("fma", "dot", "bf16"):
            return loop, products + 1, others
        return loop, products, others + (1 if kind else 0)


def lowered(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """A function with flat arrays, explicit vectors, and its unrolled loops written out."""
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
    """The array that a view shows."""
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
    """The name of what a call of an intrinsic or of a function calls."""
    first = node.args[0]
    if type(first).__name__ == "StringImm":
        return str(first.value)
    return str(codegen.llvm_get_intrinsic_name(int(first.value)))
