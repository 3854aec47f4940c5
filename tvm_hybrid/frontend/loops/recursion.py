"""A loop as functions that call each other, halving the range of iterations.

    loop(low, high, going, states)  =  part(low, high, states) if going and low < high
                                       else going, states, no rows
    part(low, high, states)         =  step(low, states) if high - low <= 1 else both(...)
    both(low, high, states)         =  loop(low, middle), then loop(middle, high) of its results;
                                       the rows of both, joined
    step(low, states)               =  the body, once

Relax has no loop. A function that called itself for the next iteration would need a frame of the
stack for each; halves need as many as the number of iterations has bits. When the condition ends
the loop, every range that is left ends at once, so the limit may be as high as an int64 goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import GlobalVar
from tvm.relax.utils import copy_with_new_vars

from ..data_sized.elements import known_elements
from ..data_sized.kernels import INDEX
from ..expressions import Expr, literal, reshaped
from ..freeze_shapes import new_size

UNLIMITED = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Loop:
    """The form of a loop.

    Parameters
    ----------
    body
        (i, states, captured) -> (going, states, rows), one tensor if that is all.
    states
        How many there are.
    steps
        How many iterations, None if that depends on data or on open sizes.
    ends_early
        Whether a condition may end it before the limit.
    """

    body: relax.Function
    states: int
    steps: int | None
    ends_early: bool

    @property
    def made(self) -> list[relax.TensorType]:
        """The types of what the body makes."""
        found = self.body.ret_ty
        types = list(found.fields) if isinstance(found, relax.TupleType) else [found]
        return [each for each in types if isinstance(each, relax.TensorType)]

    @property
    def rows(self) -> list[relax.TensorType]:
        """The types of an iteration's rows."""
        return self.made[1 + self.states :]


def repeat(
    library: relax.BlockBuilder, builder: relax.BlockBuilder, loop: Loop, inputs: Sequence[Expr]
) -> Expr:
    """The states after the loop, and all rows, as a tuple if it is more than one.

    Parameters
    ----------
    library
        Receives the functions.
    inputs
        The limit or None, the condition, the states, the values from outside.
    """
    limit, condition, *values = inputs
    high = literal(np.array(UNLIMITED, INDEX)) if limit is None else reshaped(builder, limit, ())
    call = relax.Call(
        _functions(library, loop),
        [literal(np.array(0, INDEX)), high, reshaped(builder, condition, ()), *values],
    )
    results = _fields(builder, builder.emit(call))[1:]
    for index, row in enumerate(loop.rows):
        position = loop.states + index
        size = loop.steps if loop.steps is not None else _length(builder, loop, high)
        results[position] = builder.match_cast(results[position], _stacked(row, size))
    return relax.Tuple(results) if len(results) > 1 else results[0]


def _length(builder: relax.BlockBuilder, loop: Loop, limit: Expr) -> Expr:
    """How many iterations there are, in terms of other sizes if these tell it."""
    found = None if loop.ends_early else known_elements(builder, limit)
    return new_size() if found is None else found.item()


def _functions(library: relax.BlockBuilder, loop: Loop) -> GlobalVar:
    """Adds the functions; returns the one that runs a range of iterations."""
    body = library.add_func(copy_with_new_vars(loop.body), "loop_body")
    going, integer = relax.TensorType((), "bool"), relax.TensorType((), INDEX)
    values = [parameter.ty for parameter in loop.body.params[1:]]
    ranged = [integer, integer, *values]
    rows = [relax.TensorType(dtype=row.dtype, ndim=row.ndim + 1) for row in loop.rows]
    result = relax.TupleType([going, *loop.made[1 : 1 + loop.states], *rows])
    empty = relax.Function.create_empty(_parameters([integer, integer, going, *values]), result)
    whole = library.add_func(copy_with_new_vars(empty), "loop")

    def step(builder: relax.BlockBuilder, low: Expr, *values: Expr) -> relax.Tuple:
        made = _fields(builder, builder.emit(relax.Call(body, [low, *values])))
        first = 1 + loop.states
        rows = [builder.emit(relax.op.expand_dims(row, [0])) for row in made[first:]]
        return relax.Tuple([reshaped(builder, made[0], ()), *made[1:first], *rows])

    def both(builder: relax.BlockBuilder, low: Expr, high: Expr, *values: Expr) -> relax.Tuple:
        size = builder.emit(relax.op.subtract(high, low))
        half = builder.emit(relax.op.floor_divide(size, literal(np.array(2, INDEX))))
        middle = builder.emit(relax.op.add(low, half))
        going = literal(np.array(True))
        before = _fields(builder, builder.emit(relax.Call(whole, [low, middle, going, *values])))
        first = 1 + loop.states
        further = [middle, high, *before[:first], *values[loop.states :]]
        after = _fields(builder, builder.emit(relax.Call(whole, further)))
        joined = []
        for index, row in enumerate(loop.rows):
            parts = [
                builder.match_cast(made[first + index], _stacked(row, new_size()))
                for made in (before, after)
            ]
            joined.append(builder.emit(relax.op.concat(parts, 0)))
        return relax.Tuple([*after[:first], *joined])

    def stop(builder: relax.BlockBuilder, going: Expr, *values: Expr) -> relax.Tuple:
        nothing = [
            builder.emit(relax.op.zeros([0, *_sizes(row)], str(row.dtype))) for row in loop.rows
        ]
        return relax.Tuple([going, *values[: loop.states], *nothing])

    once = _add(library, "loop_step", [integer, *values], step)
    halves = _add(library, "loop_both", ranged, both)
    end = _add(library, "loop_stop", [going, *values], stop)

    def part(builder: relax.BlockBuilder, low: Expr, high: Expr, *values: Expr) -> Expr:
        size = builder.emit(relax.op.subtract(high, low))
        single = builder.emit(relax.op.less_equal(size, literal(np.array(1, INDEX))))
        several = relax.Call(halves, [low, high, *values])
        return builder.emit(relax.If(single, relax.Call(once, [low, *values]), several))

    some = _add(library, "loop_part", ranged, part)

    def run(builder: relax.BlockBuilder, low: Expr, high: Expr, going: Expr, *values: Expr) -> Expr:
        left = builder.emit(relax.op.less(low, high))
        runs = builder.emit(relax.op.logical_and(going, left))
        ended = relax.Call(end, [going, *values])
        return builder.emit(relax.If(runs, relax.Call(some, [low, high, *values]), ended))

    library.update_func(whole, _function([integer, integer, going, *values], run))
    return whole


def _add(
    library: relax.BlockBuilder,
    name: str,
    types: Sequence[relax.Type],
    write: Callable[..., Expr],
) -> GlobalVar:
    return library.add_func(_function(types, write), name)


def _function(types: Sequence[relax.Type], write: Callable[..., Expr]) -> relax.Function:
    """The function that `write` writes of a builder and the parameters."""
    builder, parameters = relax.BlockBuilder(), _parameters(types)
    with builder.function("function", parameters, private=True):
        builder.emit_func_output(write(builder, *parameters))
    return copy_with_new_vars(builder.get()["function"])


def _parameters(types: Sequence[relax.Type]) -> list[relax.Var]:
    return [relax.Var(f"p{index}", found) for index, found in enumerate(types)]


def _fields(builder: relax.BlockBuilder, value: Expr) -> list[Expr]:
    """The fields of a tuple; a tensor is one by itself."""
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    fields = range(len(value.ty.fields))
    return [builder.emit(relax.TupleGetItem(value, index)) for index in fields]


def _stacked(row: relax.TensorType, size: Expr | int) -> relax.TensorType:
    return relax.TensorType([size, *_sizes(row)], row.dtype)


def _sizes(row: relax.TensorType) -> list[Expr]:
    assert isinstance(row.shape, relax.ShapeExpr)  # `add_body` saw to it
    return list(row.shape.values)
