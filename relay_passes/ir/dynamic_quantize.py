"""Dynamic quantisation of a tensor (DynamicQuantizeLinear): written and recognised in one place.

    high = R.maximum(R.max(x), R.const(0.0))
    low = R.minimum(R.min(x), R.const(0.0))
    extent = R.subtract(high, low)
    step = R.divide(extent, R.const(255.0))
    scale = R.where(R.equal(step, R.const(0.0)), R.const(1.0), step)
    zero_point = R.quantize(R.negative(low), scale, R.const(0, "uint8"), out_dtype="uint8")
    q = R.quantize(x, scale, zero_point, out_dtype="uint8")

This is ONNX's definition (operator DynamicQuantizeLinear): scale = (high - low) / 255, zero_point =
saturate(round_half_even(0 - low / scale)), q = saturate(round_half_even(x / scale) + zero_point).
ONNX does not define the result for a tensor of zeros, where low / 0 is NaN. Here, as in ONNX
Runtime, its scale is 1 and its zero point 0; also if the step underflows to 0. R.quantize rounds
half to even and saturates, so it does both roundings.

torch has a smallest scale instead of a rule for zeros:

    scale = R.maximum(step, R.const(eps))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import ir, relax

from tir_schedules.core.attributes import Attribute
from tir_schedules.rows.quantization_range import LEAST_SCALE

from .graph import DataflowGraph, is_call, scalar_constant
from .rewrite import Emit

LEVELS = 255.0


@dataclass(frozen=True)
class DynamicQuantize:
    """A recognised chain.

    Parameters
    ----------
    x
        The tensor that is quantised, float32.
    q, scale, zero_point
        The chain's results: uint8 of the shape of `x`, float32 [] and uint8 [].
    positions
        Positions of the chain's bindings, ascending; the last one makes `q`.
    least
        The smallest scale; None if a tensor of zeros has scale 1.
    """

    x: relax.Expr
    q: relax.Var
    scale: relax.Var
    zero_point: relax.Var
    positions: tuple[int, ...]
    least: float | None = None

    @property
    def attributes(self) -> dict[str, Attribute]:
        """Attributes of a region that say how the range becomes a scale."""
        return {} if self.least is None else {LEAST_SCALE: self.least}


def scale_of(emit: Emit, extent: relax.Expr, least: float | None = None) -> relax.Expr:
    """Writes the part of the chain that makes the scale; the last operator is not bound yet."""
    step = emit(relax.op.divide(extent, _literal(np.float32(LEVELS))))
    if least is not None:
        return relax.op.maximum(step, _literal(np.float32(least)))
    empty = emit(relax.op.equal(step, _literal(np.float32(0))))
    return relax.op.where(empty, _literal(np.float32(1)), step)


def zero_point_of(emit: Emit, low: relax.Expr, scale: relax.Expr) -> relax.Expr:
    """Writes the part that makes the zero point; the last operator is not bound yet."""
    return _quantize(emit(relax.op.negative(low)), scale, _literal(np.uint8(0)))


def emit_dynamic_quantize(
    builder: relax.BlockBuilder, x: relax.Expr
) -> tuple[relax.Var, relax.Var, relax.Var]:
    """Writes the chain.

    Parameters
    ----------
    builder
        Its current block receives the bindings.
    x
        float32 of any shape.

    Returns
    -------
    q, scale, zero_point
        uint8 of the shape of `x`, float32 [] and uint8 [].
    """
    scale, zero_point = emit_dynamic_range(builder, x)
    return builder.emit(_quantize(x, scale, zero_point)), scale, zero_point


def emit_dynamic_range(
    builder: relax.BlockBuilder, x: relax.Expr, least: float | None = None
) -> tuple[relax.Var, relax.Var]:
    """Writes the chain without its end: `scale` and `zero_point` of `emit_dynamic_quantize`.

    With `least`, the scale is torch's.
    """
    emit, zero = builder.emit, _literal(np.float32(0))
    high = emit(relax.op.maximum(emit(relax.op.max(x)), zero))
    low = emit(relax.op.minimum(emit(relax.op.min(x)), zero))
    scale = emit(scale_of(emit, emit(relax.op.subtract(high, low)), least))
    return scale, emit(zero_point_of(emit, low, scale))


def match_dynamic_quantize(graph: DataflowGraph, position: int) -> DynamicQuantize | None:
    """The chain whose quantised tensor is bound at `position`, or None.

    The reductions must reduce all axes and drop them, the operands of maximum and minimum may be in
    either order, and every intermediate value may have other users.
    """
    chain = ChainReader(graph)
    var = graph.bindings[position].var
    quantize = chain.call(var, "quantize")
    if quantize is None or str(quantize.attrs.out_dtype) != "uint8":
        return None
    x, scale, zero_point = quantize.args
    rounded = chain.call(zero_point, "quantize")
    if rounded is None or str(rounded.attrs.out_dtype) != "uint8":
        return None
    if not rounded.args[1].same_as(scale) or scalar_constant(rounded.args[2]) != 0.0:
        return None
    negated = chain.call(rounded.args[0], "negative")
    found = chain.step(scale)
    if negated is None or found is None:
        return None
    step, least = found
    extremes = chain.extremes(step.args[0])
    if extremes is None or not negated.args[0].same_as(extremes[1]) or not extremes[0].same_as(x):
        return None
    assert isinstance(scale, relax.Var) and isinstance(zero_point, relax.Var)
    return DynamicQuantize(x, var, scale, zero_point, tuple(sorted(set(chain.seen))), least)


class ChainReader:
    """Follows a chain upwards through a block.

    Attributes
    ----------
    graph : DataflowGraph
        The block.
    seen : list of int
        Positions of the bindings passed.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self.seen: list[int] = []

    def call(self, expr: relax.Expr | None, name: str) -> relax.Call | None:
        """The call that defines an expression, if it calls `name`; else None."""
        definition = None if expr is None else self.graph.definition(expr)
        if expr is None or not is_call(definition, f"relax.{name}"):
            return None
        self.seen.append(self.graph.position[expr])
        return definition

    def step(self, scale: relax.Expr) -> tuple[relax.Call, float | None] | None:
        """The division that makes a scale's step, and the smallest scale; None for other values."""
        least, raised = None, self.call(scale, "maximum")
        if raised is not None:
            chosen, least = raised.args[0], scalar_constant(raised.args[1])
            if least is None:
                return None
        else:
            choice = self.call(scale, "where")
            if choice is None or scalar_constant(choice.args[1]) != 1.0:
                return None
            chosen = choice.args[2]
            empty = self.call(choice.args[0], "equal")
            if empty is None or not empty.args[0].same_as(chosen):
                return None
            if scalar_constant(empty.args[1]) != 0.0:
                return None
        step = self.call(chosen, "divide")
        if step is None or scalar_constant(step.args[1]) != LEVELS:
            return None
        return step, least

    def extremes(self, extent: relax.Expr) -> tuple[relax.Expr, relax.Expr] | None:
        """(x, low) if an expression is max(x, 0) - low with low = min(x, 0); else None."""
        difference = self.call(extent, "subtract")
        if difference is None:
            return None
        high, low = difference.args
        above, below = self._extreme(high, "maximum", "max"), self._extreme(low, "minimum", "min")
        if above is None or below is None or not above.same_as(below):
            return None
        return above, low

    def _extreme(self, expr: relax.Expr, outer: str, inner: str) -> relax.Expr | None:
        """x, if an expression is the maximum (minimum) of 0 and all elements of x; else None."""
        bound = self.call(expr, outer)
        if bound is None:
            return None
        rest = [operand for operand in bound.args if scalar_constant(operand) != 0.0]
        reduction = self.call(rest[0], inner) if len(rest) == 1 else None
        if reduction is None or reduction.attrs.axis is not None or reduction.attrs.keepdims:
            return None
        return reduction.args[0]


def ranges_in_place(
    graph: DataflowGraph,
) -> Iterator[tuple[relax.Var, tuple[relax.Expr, int, list[int]]]]:
    """Scales and zero points of a block's chains, in the form of `DataflowGraph.range_items`.

    The scale stands for the range, as no tensor holds the range.
    """
    for position in range(len(graph.bindings)):
        chain = match_dynamic_quantize(graph, position)
        if chain is not None:
            positions = list(chain.positions[:-1])
            yield chain.scale, (chain.scale, 0, positions)
            yield chain.zero_point, (chain.scale, 1, positions)


def _quantize(x: relax.Expr, scale: relax.Expr, zero_point: relax.Expr) -> relax.Expr:
    return relax.op.quantize(x, scale, zero_point, axis=-1, out_dtype="uint8")


def _literal(value: np.generic | np.ndarray) -> ir.GenericConst:
    return relax.const(tvm.runtime.tensor(np.asarray(value)))
