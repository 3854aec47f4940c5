"""Rewrites DynamicQuantizeLinear from the form of TVM's ONNX importer to the one that we recognise.

Before

    extent = R.subtract(high, low)
    scale = R.divide(extent, R.const(255.0))
    lv = R.subtract(R.const(0.0), R.divide(low, scale))
    zero_point = R.astype(R.round(R.clip(lv, 0, 255)), "uint8")

After

    extent = R.subtract(high, low)
    step = R.divide(extent, R.const(255.0))
    scale = R.where(R.equal(step, R.const(0.0)), R.const(1.0), step)
    zero_point = R.quantize(R.negative(low), scale, R.const(0, "uint8"), out_dtype="uint8")

high is the maximum of a tensor and 0, low the minimum. Both forms give the same numbers, except for
a tensor of zeros: its scale is 1 and its zero point 0, as in ONNX Runtime, where TVM's importer
divides 0 by 0.
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.dynamic_quantize import (
    LEVELS,
    ChainReader,
    is_number,
    scale_of,
    zero_point_of,
)
from relay_passes.ir.graph import AnyBinding, DataflowGraph
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values


def stock_dynamic_quantize() -> ir.transform.Pass:
    """The pass; blocks must be in A-normal form."""
    return block_pass("tvm_hybrid.stock_dynamic_quantize", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    scales: dict[relax.Var, relax.Expr] = {}
    zero_points: dict[relax.Var, tuple[relax.Expr, relax.Var]] = {}
    for binding in graph.bindings:
        found = _match(graph, binding.var)
        if found is not None:
            scale, extent, low = found
            scales[scale] = extent
            zero_points[binding.var] = low, scale
    block = Bindings()

    def written(binding: AnyBinding) -> relax.Expr | None:
        if binding.var in scales:
            return scale_of(block.emit, scales[binding.var])
        if binding.var in zero_points:
            return zero_point_of(block.emit, *zero_points[binding.var])
        return None

    return rewrite_values(graph, block, written)


def _match(graph: DataflowGraph, var: relax.Var) -> tuple[relax.Var, relax.Expr, relax.Expr] | None:
    """(scale, extent, low) if a variable is the zero point of a chain, else None."""
    chain = ChainReader(graph)
    cast = chain.call(var, "astype")
    rounded = None if cast is None else chain.call(cast.args[0], "round")
    clipped = None if rounded is None else chain.call(rounded.args[0], "clip")
    if clipped is None or str(var.ty.dtype) != "uint8":
        return None
    if [float(limit.value) for limit in clipped.args[1:]] != [0.0, LEVELS]:
        return None
    negated = chain.call(clipped.args[0], "subtract")
    if negated is None or not is_number(negated.args[0], 0.0):
        return None
    quotient = chain.call(negated.args[1], "divide")
    step = None if quotient is None else chain.call(quotient.args[1], "divide")
    if quotient is None or step is None or not is_number(step.args[1], LEVELS):
        return None
    extremes = chain.extremes(step.args[0])
    if extremes is None or not extremes[1].same_as(quotient.args[0]):
        return None
    scale = quotient.args[1]
    assert isinstance(scale, relax.Var)  # it is what `step` is bound to
    return scale, step.args[0], extremes[1]
