"""Loop nests: what a lowered function computes, without the order of its loops.

A function out of FuseTIR is a list of blocks, each under its own loops:

    for i, k in T.grid(8, 128):
        with T.sblock("sum"):
            v_i, v_k = T.axis.remap("SR", [i, k])
            with T.init():
                total[v_i] = 0.0
            total[v_i] = total[v_i] + x[v_i, v_k]

It becomes the list of nests that the generic schedule writes new loops for:

    Nest("sum", spatial=[v_i: 8], reduce=[v_k: 128],
         stores=[total[v_i] <- total[v_i] + x[v_i, v_k], init 0.0])

Axes of extent one are removed, and index expressions are simplified with the axes' ranges.
`read_program` reads a function into nests, or says why it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels.vector.expressions import Expr

from .expressions import (
    calls_of,
    const_int,
    folded,
    guard_floats,
    int64,
    loads_of,
    map_loads,
    same,
    strides_of,
    substitute,
    variables_of,
)

ReadSize = Callable[[Any], "int | None"]
"""An extent -> its size; None if the extent is not known."""

_MOST_DIVISIONS = 8  # nested divisions of one position
_LARGEST = 1 << 40  # an upper bound of every dynamic size


SAMPLE = 1 << 10
"""The size that stands for a dynamic one when costs and the order of loops are chosen."""


class NotHandledError(Exception):
    """A rule does not apply, for the reason in the message; never leaves the generic schedule."""


tvm_ffi.register_error(NotHandledError)  # else it comes out of TVM's callbacks as a RuntimeError


def unchanged(load: TensorLoad) -> Expr:
    """Returns a load without changing it."""
    return load


@dataclass(frozen=True)
class Axis:
    """A loop of a nest: its variable runs from 0 to `extent` - 1.

    `end` is the extent as the function states it, if that is dynamic.
    """

    var: tirx.Var
    extent: int
    end: Expr | None = None

    @staticmethod
    def new(size: Any, name: str = "i") -> Axis:
        """An axis with a new variable; `SAMPLE` stands for a dynamic size."""
        var, known = tirx.Var(name, "int64"), const_int(size)
        return Axis(var, SAMPLE, size) if known is None else Axis(var, known)

    @property
    def stated(self) -> Expr:
        """The extent as an expression."""
        return int64(self.extent) if self.end is None else self.end


@dataclass(frozen=True)
class Store:
    """`buffer[indices] = value`; with `init`, `value` reads the element it updates."""

    buffer: tirx.Var
    indices: tuple[Expr, ...]
    value: Expr
    init: Expr | None = None

    @property
    def start(self) -> Expr:
        """The value that a reduction starts with."""
        assert self.init is not None
        return self.init

    def mapped(self, change: Callable[[Expr], Expr]) -> Store:
        """The store with its indices and its value replaced."""
        return replace(self, indices=tuple(map(change, self.indices)), value=change(self.value))


@dataclass(frozen=True)
class Nest:
    """One block: all stores, for every point of the axes.

    Attributes
    ----------
    spatial, reduce : tuple of Axis
        Axes whose points are independent, and axes that are accumulated over.
    stores : tuple of Store
        In execution order; later stores may read what earlier ones wrote.
    lets : tuple of (Var, Expr)
        Names that the values of `stores` use, outermost first.
    epilogue : tuple of Store
        What a reduction does with the finished element instead of storing it. The values of the
        epilogue read the elements of `stores`.
    size : callable
        The `size` of `read_program`.
    """

    name: str
    spatial: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    stores: tuple[Store, ...]
    lets: tuple[tuple[tirx.Var, Expr], ...] = ()
    epilogue: tuple[Store, ...] = ()
    size: ReadSize = const_int

    @property
    def points(self) -> int:
        """Number of points of all axes."""
        return math.prod(axis.extent for axis in (*self.spatial, *self.reduce))

    @property
    def results(self) -> tuple[Store, ...]:
        """The stores whose elements later nests may read."""
        return self.epilogue or self.stores

    @property
    def finished(self) -> tuple[Store, ...]:
        """The stores of finished elements; their values read the elements of `stores`."""
        return self.epilogue or tuple(
            replace(own, value=tirx.BufferLoad(own.buffer, list(own.indices)), init=None)
            for own in self.stores
        )

    @property
    def has_choices(self) -> bool:
        """Whether a condition selects what is computed."""
        return any(calls_of(value, "if_then_else") for value in self.expressions())

    def expressions(self) -> list[Expr]:
        """Every value, index and named expression."""
        found = [value for _, value in self.lets]
        for store in (*self.stores, *self.epilogue):
            found += [store.value, *store.indices]
            if store.init is not None:
                found.append(store.init)
        return found

    def reads(self) -> list[TensorLoad]:
        """Every load in the nest."""
        return [load for expression in self.expressions() for load in loads_of(expression)]

    def distinct_reads(self) -> list[TensorLoad]:
        """The distinct loads, in the order of `access_strides`."""
        found: list[TensorLoad] = []
        for load in self.reads():
            if not any(load.same_as(other) for other in found):
                found.append(load)
        return found

    def mapped(self, in_store: Callable[[Store], Store], in_value: Callable[[Expr], Expr]) -> Nest:
        """The nest with every store, and the value of every name, replaced."""
        return replace(
            self,
            stores=tuple(map(in_store, self.stores)),
            epilogue=tuple(map(in_store, self.epilogue)),
            lets=tuple((var, in_value(value)) for var, value in self.lets),
        )

    def substituted(self, values: dict[tirx.Var, Expr]) -> Nest:
        """The nest with variables replaced in every expression."""

        def change(value: Expr) -> Expr:
            return substitute(value, values)

        def in_store(store: Store) -> Store:
            init = None if store.init is None else change(store.init)
            return replace(store.mapped(change), init=init)

        return self.mapped(in_store, change)

    def with_loads(self, change: Callable[[TensorLoad], Expr]) -> Nest:
        """The nest with every load in a value replaced."""
        return self if change is unchanged else self.with_values(lambda v: map_loads(v, change))

    def with_values(self, change: Callable[[Expr], Expr]) -> Nest:
        """The nest with every value replaced."""
        return self.mapped(lambda store: replace(store, value=change(store.value)), change)

    def simplified(self) -> Nest:
        """The nest without unit axes, with every expression simplified within the axes' ranges."""
        units = {axis.var: int64(0) for axis in self.axes() if axis.extent == 1}
        nest = self.substituted(units) if units else self
        return replace(
            nest,
            spatial=tuple(axis for axis in nest.spatial if axis.extent != 1),
            reduce=tuple(axis for axis in nest.reduce if axis.extent != 1),
        ).tidied()

    def tidied(self) -> Nest:
        """The nest with every expression simplified within the axes' ranges."""
        analyzer = self.analyzer()
        is_dynamic = any(axis.end is not None for axis in self.axes())

        def simplify(value: Expr) -> Expr:
            value = floors(without_round_trips(analyzer.simplify(value)), analyzer)
            return without_divisions(value, analyzer) if is_dynamic else value

        return self.mapped(lambda store: store.mapped(simplify), simplify)

    def analyzer(self) -> Analyzer:
        """An analyzer that knows the range of every axis."""
        return analyzer_for(self.axes())

    def step_along(self, position: Expr, axis: Axis) -> int | None:
        """How far a position moves with one step of an axis; None if that is not constant."""
        return strides_of(position, [axis.var], self.analyzer())[axis.var]

    def values(self) -> list[Expr]:
        """The values of all stores and names."""
        stored = [store.value for store in (*self.stores, *self.epilogue)]
        return [*stored, *(value for _, value in self.lets)]

    def axes(self) -> tuple[Axis, ...]:
        """All axes, spatial ones first."""
        return (*self.spatial, *self.reduce)


@dataclass(frozen=True)
class FunctionNests:
    """A function as nests, in execution order, with its temporary buffers."""

    func: tirx.PrimFunc
    temporaries: tuple[tirx.Var, ...]
    nests: tuple[Nest, ...]

    def consumers(self, buffer: tirx.Var) -> list[int]:
        """Positions of the nests that read a buffer which they do not write."""
        return [
            position
            for position, nest in enumerate(self.nests)
            if all(not store.buffer.same_as(buffer) for store in nest.stores)
            and any(load.source.same_as(buffer) for load in nest.reads())
        ]


def floors(value: Expr, analyzer: Analyzer) -> Expr:
    """Replaces divisions of non-negative positions by floor divisions, which simplify further."""

    def change(division: tirx.Div) -> Expr:
        divisor = const_int(division.b)
        is_integer = str(division.ty.dtype).startswith("int")
        if not is_integer or divisor is None or divisor <= 0:
            return division
        if analyzer.const_int_bound(division.a).min_value < 0:
            return division
        return tirx.FloorDiv(division.a, division.b)

    return tvm_ffi.structural_map(value, (tirx.Div, change))


def without_divisions(value: Expr, analyzer: Analyzer) -> Expr:
    """Removes divisions of positions by dynamic sizes that are known to bound these positions.

    (n * i + j) // n % m  ->  i, if j < n and i < m
    """

    def change(division: tirx.FloorDiv | tirx.FloorMod) -> Expr:
        divisor = division.b
        whole, rest = (analyzer.simplify(each) for each in _parted(division.a, divisor))
        if not analyzer.can_prove(rest >= 0) or not analyzer.can_prove(rest < divisor):
            return division
        return whole if isinstance(division, tirx.FloorDiv) else rest

    for _ in range(_MOST_DIVISIONS):
        before = value
        value = tvm_ffi.structural_map(value, ((tirx.FloorDiv, tirx.FloorMod), change))
        if value.same_as(before):
            break
        value = analyzer.simplify(value)
    return value


def _parted(value: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """`whole` and `rest` of a value that is `whole * divisor + rest`."""
    if isinstance(value, tirx.Add | tirx.Sub):
        is_sum = isinstance(value, tirx.Add)
        pairs = zip(_parted(value.a, divisor), _parted(value.b, divisor), strict=True)
        whole, rest = (one + other if is_sum else one - other for one, other in pairs)
        return whole, rest
    factors = [(value.a, value.b), (value.b, value.a)] if isinstance(value, tirx.Mul) else []
    for one, other in factors:
        if same(other, divisor):
            return one, int64(0)
        whole, rest = _parted(one, divisor)
        if const_int(rest) == 0:
            return whole * other, rest
    return int64(0), value


def without_round_trips(value: Expr) -> Expr:
    """Removes casts of small integers to f32 and back, which TVM's resize makes."""

    def change(outer: tirx.Cast) -> Expr:
        inner = outer.value
        if not isinstance(inner, tirx.Cast) or str(inner.ty.dtype) != "float32":
            return outer
        small = str(inner.value.ty.dtype) in ("uint8", "int8", "uint16", "int16")
        return inner.value if small and outer.ty.dtype == inner.value.ty.dtype else outer

    return tvm_ffi.structural_map(value, (tirx.Cast, change))


def analyzer_for(axes: Iterable[Axis]) -> Analyzer:
    """An analyzer that knows the range of every axis, and that no size is negative."""
    analyzer = Analyzer()
    axes = list(axes)
    ends = {var for axis in axes if axis.end is not None for var in variables_of(axis.end)}
    for var in ends - {axis.var for axis in axes}:
        analyzer.bind(var, Range(int64(0), int64(_LARGEST)))
    for axis in axes:
        analyzer.bind(axis.var, Range(int64(0), axis.stated))
    return analyzer


def read_program(func: tirx.PrimFunc, size: ReadSize = const_int) -> FunctionNests:
    """The nests of a function.

    Parameters
    ----------
    func : tirx.PrimFunc
        Its parameters are tensors, and may be numbers, too, if `size` is not `const_int`.
    size : callable
        Maps an extent to its size; to a symbolic size if the extent is dynamic.

    Raises
    ------
    NotHandledError
        If the function is not a list of plain blocks with known extents.
    """
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or root.block.iter_vars:
        raise NotHandledError("the body is not a root block")
    for buffer in (*func.params, *root.block.alloc_buffers):
        if is_number(buffer):
            if size is const_int:
                raise NotHandledError(f"parameter {buffer.name} is not a tensor")
            continue
        if any(size(extent) is None for extent in buffer.shape):
            raise NotHandledError(f"the shape of {buffer.name} is not known")
        if len(buffer.strides):
            raise NotHandledError(f"{buffer.name} has strides")
    nests = []
    for number, statement in enumerate(statements_of(root.block.body)):
        nest = _without_reduction(_read_nest(statement, number, size)).simplified()
        if nest.points or nest.reduce:  # other nests do nothing
            nests.append(nest)
    return FunctionNests(func, tuple(root.block.alloc_buffers), tuple(nests))


def statements_of(body: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements of a sequence and of all nested sequences, in order."""
    if isinstance(body, tirx.SeqStmt):
        return [part for statement in body.seq for part in statements_of(statement)]
    return [body]


def _without_reduction(nest: Nest) -> Nest:
    """Makes a nest that accumulates only one element a plain store."""
    if not nest.reduce or any(axis.extent != 1 for axis in nest.reduce):
        return nest
    starts = {store.buffer: store.init for store in nest.stores if store.init is not None}

    def started(store: Store) -> Store:
        value = map_loads(store.value, lambda load: starts.get(load.source, load))
        return replace(store, value=value, init=None)

    return replace(nest, stores=tuple(map(started, nest.stores)))


def is_number(parameter: tirx.Var) -> bool:
    """Whether a parameter of a function is a number, not a tensor."""
    return getattr(parameter, "shape", None) is None


def _read_nest(statement: tirx.Stmt, number: int, size: ReadSize) -> Nest:
    loops: list[tirx.For] = []
    while isinstance(statement, tirx.For):
        if statement.kind != tirx.ForKind.SERIAL or const_int(statement.min) != 0:
            raise NotHandledError(f"loop {statement.loop_var.name} is not a plain one")
        loops.append(statement)
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize):
        raise NotHandledError(f"statement {number} is not a block")
    block = statement.block
    if block.match_buffers or block.alloc_buffers or const_int(statement.predicate) != 1:
        raise NotHandledError(f"block {block.name_hint} is not a plain one")
    extents = {loop.loop_var: size(folded(loop.extent)) for loop in loops}
    own = {*extents, *(iterator.var for iterator in block.iter_vars)}
    spatial, reduce = [], []
    for iterator, value in zip(block.iter_vars, statement.iter_values, strict=True):
        stated = folded(iterator.dom.extent)
        extent = size(stated)
        inside = set() if isinstance(stated, tirx.IntImm) else variables_of(stated)
        end = stated if inside else None
        if any(var in own or not is_number(var) for var in inside):
            raise NotHandledError(f"{block.name_hint} has an axis whose extent is no size")
        bound = extents.get(value) if isinstance(value, tirx.Var) else const_int(value)
        if extent is None or const_int(iterator.dom.min) != 0:
            raise NotHandledError(f"{block.name_hint} has an axis of unknown extent")
        if bound != (extent if isinstance(value, tirx.Var) else 0):
            raise NotHandledError(f"{block.name_hint} does not run over its loops one to one")
        if iterator.iter_type == tirx.IterVar.DataPar:
            spatial.append(Axis(iterator.var, extent, end))
        elif iterator.iter_type == tirx.IterVar.CommReduce:
            reduce.append(Axis(iterator.var, extent, end))
        else:
            raise NotHandledError(f"{block.name_hint} has an axis that is neither S nor R")
    stores = _read_stores(block)
    return Nest(f"{block.name_hint}", tuple(spatial), tuple(reduce), stores, size=size)


def _read_stores(block: s_tir.SBlock) -> tuple[Store, ...]:
    inits: dict[tirx.Var, Expr] = {}
    if block.init is not None:
        for statement in statements_of(block.init):
            if not isinstance(statement, tirx.BufferStore):
                raise NotHandledError(f"{block.name_hint} has an unusual init")
            inits[statement.buffer] = statement.value
    names: dict[tirx.Var, Expr] = {}
    stores: list[Store] = []
    for statement in statements_of(block.body):
        if isinstance(statement, tirx.Bind):
            if stores:
                raise NotHandledError(f"{block.name_hint} names a value after a store")
            names[statement.var] = substitute(statement.value, names)
        elif isinstance(statement, tirx.BufferStore):
            value = substitute(statement.value, names)
            if block.init is None:  # a reduction is recognised by the form of its value
                value = guard_floats(value)
            init = inits.get(statement.buffer)
            stores.append(Store(statement.buffer, tuple(statement.indices), value, init))
        else:
            raise NotHandledError(f"{block.name_hint} does more than store elements")
    return tuple(stores)
