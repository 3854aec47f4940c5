"""Products of a tensor with a scale per row, and products with a weight that stays at 8 bits."""

from __future__ import annotations

import numpy as np
from tvm import relax

from microkernels.base.arrays import RANGES
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.dynamic_quantize import LEVELS, ChainReader, scale_of, zero_point_of
from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    is_f32,
    known_tensor,
    region_tensor,
    relax_shape,
    scalar_constant,
    static_tensor,
)
from relay_passes.ir.quantization import LIMIT, Quantized, centred, known_centred, read_dequantize
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import Rule, RuleGraph, leave, rule


def row_scales(decisions: DecisionLog | None = None) -> Rule:
    """Makes the rule for products of rows that each have a scale and a zero point.

    The product multiplies 8-bit integers, and is scaled afterwards.

    Before

        lv = R.subtract(R.astype(q, "float32"), z)          # q: int8 [M, K], z: f32 [M, 1]
        lv1 = R.multiply(lv, s)                             # s: f32 [M, 1]
        lv2 = R.dequantize(const_w, sW, zW, axis=1)         # const_w: int8 [K, N], sW: f32 [N]
        lv3 = R.matmul(lv1, lv2)

    After

        lv = R.astype(R.subtract(const_w, zW), "int32")     # without the subtraction if zW is 0
        lv1 = R.matmul(R.astype(q, "int32"), lv, out_dtype="int32")
        lv2 = R.multiply(R.astype(z, "int32"), const_sums)  # sums of columns of w - zW: int32 [N]
        lv3 = R.astype(R.subtract(lv1, lv2), "float32")
        lv4 = R.multiply(R.multiply(lv3, sW), s)

        sum_k (q - z) s (w - zW) sW = s sW (sum_k q (w - zW) - z sum_k (w - zW))

    This is the form of torch's quantisation of tokens (`choose_qparams_per_token`); without z the
    second term is missing. Kernels have one zero point for all rows, so the term is a tensor of the
    result's size. A reshape that keeps rows may be in front of the product. Sums that may need more
    than 32 bits stay in f32, and so do products with weights that are no constants.

    Parameters
    ----------
    decisions : list of Decision, optional
        Receives why a product of such a tensor and a dequantised one is left in f32.
    """

    @rule("relax.matmul")
    def row_scales(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
        x, op, emit = call.args[0], relax.op, block.emit
        rows = _read_rows(graph, x) if is_f32(call) else None
        weight = read_dequantize(graph.definition(call.args[1]))
        if rows is None or weight is None or weight.dtype != "float32":
            return None
        values = _known_weight(weight)
        if isinstance(values, str):
            leave(decisions, block.var, call, values)
            return None
        lead = known_tensor(x).shape[:-1]

        def in_shape(part: relax.Expr) -> relax.Expr:
            """A tensor with one row per row of the product, in the operand's rank."""
            shape = (*lead, known_tensor(part).shape[-1])
            same = known_tensor(part).shape == shape
            return part if same else emit(op.reshape(part, relax_shape(shape, x)))

        (data, scale), zero_point, quantization = (
            map(in_shape, rows[:2]),
            rows[2],
            weight.quantization,
        )
        wide = emit(op.astype(data, "int32"))
        w = centred(emit, weight.data, quantization.zero_point)
        total = emit(op.matmul(wide, w, "int32"))
        if zero_point is not None:
            zeros = emit(op.astype(in_shape(zero_point), "int32"))
            sums = relax.const(values.sum(axis=0, dtype=np.int32))
            total = emit(op.subtract(total, emit(op.multiply(zeros, sums))))
        scaled = emit(op.multiply(emit(op.astype(total, "float32")), quantization.scale))
        return op.multiply(scaled, scale)

    return row_scales


def _known_weight(weight: Quantized) -> np.ndarray | str:
    """The weight minus its zero points, int32 [K, N], or why there is no product of integers."""
    values = known_centred(weight)
    if weight.data_dtype not in RANGES or values is None:
        return "the weight is not an 8-bit constant"
    if values.ndim != 2 or weight.quantization.axis not in (None, 1):
        return "the scale of the weight differs along another axis than columns"
    if not is_f32(weight.quantization.scale):
        return "a scale is not float32"
    # A row's integers minus their zero point are at most 255.
    if np.any(255 * np.abs(values.astype(np.int64)).sum(axis=0) >= LIMIT):
        return "the sum may need more than 32 bits"
    return values


_Rows = tuple[relax.Expr, relax.Expr, "relax.Expr | None"]


def _read_rows(graph: DataflowGraph, expr: relax.Expr) -> _Rows | None:
    """(data, scale, zero point) of an operand (data - zero point) * scale, with one number per row
    each; None if the operand has another form."""
    scaled = graph.definition(expr)
    if is_call(scaled, "relax.reshape"):
        given, viewed = region_tensor(scaled.args[0]), region_tensor(scaled)
        if given is None or viewed is None or given.shape[-1:] != viewed.shape[-1:]:
            return None
        scaled = graph.definition(scaled.args[0])
    if not is_call(scaled, "relax.multiply") or not _for_rows(scaled):
        return None
    source = graph.definition(scaled.args[0])
    zero_point = None
    if is_call(source, "relax.subtract") and _for_rows(source):
        zero_point = source.args[1]
        source = graph.definition(source.args[0])
    if not is_call(source, "relax.astype") or not is_f32(source):
        return None
    data = source.args[0]
    return (data, scaled.args[1], zero_point) if str(data.ty.dtype) in RANGES else None


def _for_rows(call: relax.Call) -> bool:
    """Whether the second operand has one number per row of the result, which is f32."""
    result, operand = region_tensor(call), region_tensor(call.args[1])
    if result is None or operand is None or not is_f32(call) or len(result.shape) < 2:
        return False
    return operand.shape == (*result.shape[:-1], 1)


@rule("relax.astype")
def stock_dynamic_quantize(
    graph: RuleGraph, block: Bindings, call: relax.Call
) -> relax.Expr | None:
    """Rewrites DynamicQuantizeLinear from the form of TVM's ONNX importer to the form that we
    recognise.

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

    high is the maximum of a tensor and 0, low the minimum. Both forms give the same numbers, except
    for a tensor of zeros: its scale is 1 and its zero point 0, as in ONNX Runtime, where TVM's
    importer divides 0 by 0. The scale is rewritten first, then the zero point.
    """
    chain = ChainReader(graph)
    rounded = chain.call(call.args[0], "round")
    clipped = None if rounded is None else chain.call(rounded.args[0], "clip")
    if clipped is None or str(call.ty.dtype) != "uint8":
        return None
    if [float(limit.value) for limit in clipped.args[1:]] != [0.0, LEVELS]:
        return None
    negated = chain.call(clipped.args[0], "subtract")
    if negated is None or scalar_constant(negated.args[0]) != 0.0:
        return None
    quotient = chain.call(negated.args[1], "divide")
    if quotient is None:
        return None
    low, scale = quotient.args
    given, written = chain.call(scale, "divide"), chain.step(scale)
    step = given if written is None or written[1] is not None else written[0]
    if step is None or scalar_constant(step.args[1]) != LEVELS:
        return None
    extremes = chain.extremes(step.args[0])
    if extremes is None or not extremes[1].same_as(low):
        return None
    if given is None:
        return zero_point_of(block.emit, low, scale)
    assert isinstance(scale, relax.Var)  # `step` is bound to it
    block.at(scale)
    return scale_of(block.emit, step.args[0])


@rule("relax.matmul")
def weight_only_matmul(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Weight only: rewrites products with a dequantised constant so that it stays at 8 bits.

    Before

        lv = R.dequantize(const_w, s, z, axis=1)            # int8 [K, N], s: f32 [N]
        lv1 = R.matmul(x, lv)                               # x: f32

    After

        lv = R.astype(R.reshape(const_w, [1, K, N]), "float32")
        lv1 = R.multiply(R.subtract(lv, z'), s')            # z', s': f32 [1, 1, N]; no z' if 0
        lv2 = R.matmul(x, R.reshape(lv1, [K, N]))

    A weight with K / b blocks, each with its own scales, has this form, too; here b is K. A scale
    that differs along K would mean blocks of one row and as many scales as weights, so such weights
    are not changed. The weight's value stays equal, bit for bit. The rule applies to products that
    `integer_products` and `row_scales` do not take.
    """
    weight = read_dequantize(graph.definition(call.args[1]))
    if weight is None or {weight.dtype, str(call.ty.dtype)} != {"float32"}:
        return None
    tensor, known = static_tensor(weight.data), weight.quantization.known
    if tensor is None or not tensor.constant or tensor.dtype not in RANGES:
        return None
    if len(tensor.shape) != 2 or known is None or weight.quantization.axis not in (None, 1):
        return None
    rows, columns = tensor.shape
    scale, zero_point = (
        np.ascontiguousarray(np.broadcast_to(each.astype(np.float32).reshape(-1), (1, 1, columns)))
        for each in known
    )
    value = block.emit(relax.op.reshape(weight.data, (1, rows, columns)))
    value = block.emit(relax.op.astype(value, "float32"))
    if zero_point.any():
        value = block.emit(relax.op.subtract(value, relax.const(zero_point)))
    value = block.emit(relax.op.multiply(value, relax.const(scale)))
    return relax.op.matmul(call.args[0], block.emit(relax.op.reshape(value, (rows, columns))))
