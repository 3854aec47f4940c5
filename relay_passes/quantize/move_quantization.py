"""Moves dequantisations down to the products that read them, and quantisations up to producers."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from tvm import ir, relax

from relay_passes.ir import moving_operators as moving
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, is_f32, same_shape, scalar_constant
from relay_passes.ir.quantization import Quantization, known_value, read_dequantize, read_quantize
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import ITEM, RuleGraph, rule


@rule(*moving.MOVING, "relax.nn.pad", "relax.concat", "relax.split")
def sink_dequantize(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Sink: moves dequantisations down past operators that only move elements.

    Before

        lv = R.dequantize(q, s, z)
        lv1 = R.reshape(lv, [3, 32, 12, 32])
        lv2 = R.permute_dims(lv1, [0, 2, 3, 1])
        lv3 = R.matmul(x, lv2)

    After

        lv = R.reshape(q, [3, 32, 12, 32])
        lv1 = R.permute_dims(lv, [0, 2, 3, 1])
        lv2 = R.dequantize(lv1, s, z)
        lv3 = R.matmul(x, lv2)

    Padding with zeros becomes padding with the zero point. Then 8-bit numbers are moved, and the
    dequantisation is next to the matmul that uses it. A dequantisation with several users is copied
    for each if that lets it sink. The parts of a concatenation must have equal scales and zero
    points. All values stay equal, bit for bit.
    """
    if is_call(call, "relax.concat"):
        return _joined(graph, block, call)
    source = read_dequantize(graph.definition(call.args[0]))
    if source is None:
        return None
    axis, changed = source.quantization.axis, dict[str, Any]()
    if is_call(call, "relax.split"):
        if axis == moving.joined_axis(call):
            return None
        return moving.split_alike(
            block, call, source.data, lambda item: replace(source, data=item).dequantize()
        )
    if is_call(call, "relax.nn.pad"):
        if axis is not None:
            return None
        if str(call.attrs.pad_mode) == "constant":  # zeros become zero points
            zero_point = scalar_constant(source.quantization.zero_point)
            # 0 times an unknown scale may not be 0.
            unknown = source.quantization.known is None
            if float(call.attrs.pad_value) or zero_point is None or unknown:
                return None
            changed["pad_value"] = int(zero_point)
    elif not moving.moves(call) and not (
        moving.picks_largest(call) and source.quantization.known is not None
    ):
        return None  # the maximum too, if the scale of its integers might be negative
    elif axis is not None:
        axis = moving.result_axis(call, axis)
        if axis is None:
            return None
    data = block.emit(with_args(call, [source.data, *call.args[1:]], **changed))
    return source.quantization.along(axis).dequantize(data, source.dtype)


def _joined(graph: DataflowGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """A concatenation of dequantised tensors as one; None if their scales differ."""
    parts = [read_dequantize(graph.definition(part)) for part in moving.parts_of_concat(call)]
    known, axis = [part for part in parts if part is not None], moving.joined_axis(call)
    alike = {(part.quantization.key, part.data_dtype, part.dtype) for part in known}
    if len(alike) != 1 or len(known) < len(parts) or known[0].quantization.axis == axis:
        return None
    data = block.emit(relax.op.concat([part.data for part in known], axis))
    return replace(known[0], data=data).dequantize()


@rule(ITEM)
def open_tuples(graph: RuleGraph, _block: Bindings, item: relax.TupleGetItem) -> relax.Expr | None:
    """Replaces an item of an explicit tuple by the tuple's field.

    Before

        lv = (x, y)
        lv1 = lv[1]

    After

        lv1 = y
    """
    whole = graph.definition(item.tuple_value)
    return whole.fields[item.index] if isinstance(whole, relax.Tuple) else None


@rule("relax.dequantize")
def fold_dequantize(_graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Fold: dequantises biases and other small constants at compile time; weights stay 8 bits.

    Before

        lv = R.dequantize(const_b, s, z)                    # int32 [N]
        lv1 = R.add(x, lv)

    After

        lv1 = R.add(x, const_b')                            # f32 [N]

    It folds constants of at most one axis, and 32-bit constants.
    """
    read = read_dequantize(call)
    if read is None or not isinstance(read.data, ir.GenericConst) or read.dtype != "float32":
        return None
    small = read.data.ty.ndim <= 1 or read.data_dtype == "int32"
    value = known_value(read) if small else None
    return None if value is None else relax.const(value)


@rule("relax.quantize")
def lift_quantize(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Lift: moves quantisations up past operators that only move elements.

    Before

        lv = R.reshape(x, [3, 32, 12, 32])
        lv1 = R.permute_dims(lv, [0, 2, 3, 1])
        lv2 = R.quantize(lv1, s, z)

    After

        lv = R.quantize(x, s, z)
        lv1 = R.reshape(lv, [3, 32, 12, 32])
        lv2 = R.permute_dims(lv1, [0, 2, 3, 1])

    The kernel that computes x can then write 8-bit numbers, and fewer bytes are moved. Quantising
    also moves up past a maximum pool, because it is monotonic, and past a split if every part has
    the same quantisation. A value that is also needed in f32 is reshaped twice, but not permuted
    twice. The rule also makes two simplifications:

    - R.quantize(R.dequantize(q, s, z), s, z) becomes q: (q - z) * s divided by s differs from q - z
      by far less than a half.
    - A relu or clip is dropped if the quantisation saturates at its bounds anyway.

    All values stay the same, bit for bit, except that a NaN may be quantised differently without a
    relu or clip. Scales and zero points must be constants: a range that is measured at run time
    stays next to the quantisation that uses it.
    """
    quantization, dtype, x = read_quantize(call), str(call.ty.dtype), call.args[0]
    if quantization is None or quantization.known is None:
        return None
    above = graph.definition(x)
    source = read_dequantize(above)
    if source is not None:
        same = source.data_dtype == dtype and source.quantization.key == quantization.key
        return source.data if same else None
    if isinstance(above, relax.TupleGetItem):
        parts = above.tuple_value
        split = graph.definition(parts)
        if not is_call(split, "relax.split") or quantization.axis == moving.joined_axis(split):
            return None
        if not isinstance(parts, relax.DataflowVar):
            return None
        if not _split_into_alike(graph, parts, quantization, dtype):
            return None
        block.at(parts)  # the quantisations of the parts then cancel with dequantisations
        integers = block.emit(quantization.quantize(split.args[0], dtype))
        dtype = str(x.ty.dtype)
        return moving.split_alike(
            block, split, integers, lambda item: quantization.dequantize(item, dtype)
        )
    if not moving.keeps_order(above) and not moving.only_needed_for(
        graph, x, _is_quantized, _may_be_quantized
    ):
        return None
    clip = _clip(above)
    if clip is not None and quantization.saturates(*clip[1:], dtype):
        return quantization.quantize(clip[0], dtype)
    if is_call(above, "relax.concat"):
        along, tensors = moving.joined_axis(above), moving.parts_of_concat(above)
        if quantization.axis == along or not tensors:
            return None
        joined = [block.emit(quantization.quantize(each, dtype)) for each in tensors]
        return relax.op.concat(joined, along)
    if not (moving.moves_all(above) or moving.picks_largest(above)):
        return None
    axis = quantization.axis
    if axis is not None:
        axis = moving.argument_axis(above, axis)
        if axis is None:
            return None
    return moving.on(above, block.emit(quantization.along(axis).quantize(above.args[0], dtype)))


def _split_into_alike(
    graph: DataflowGraph, parts: relax.Expr, quantization: Quantization, dtype: str
) -> bool:
    """Whether every use of the items of a tuple is this quantisation."""
    for position in graph.users_of(parts):
        item = graph.bindings[position]
        if not isinstance(item.value, relax.TupleGetItem):
            return False
        if not isinstance(item.var, relax.DataflowVar):
            return False
        for user in graph.users_of(item.var):
            value = graph.value(user)
            read = read_quantize(value)
            if read is None or str(value.ty.dtype) != dtype or read.key != quantization.key:
                return False
    return True


def _is_quantized(value: relax.Expr) -> bool:
    """Whether an expression quantises with constants."""
    quantization = read_quantize(value)
    return quantization is not None and quantization.known is not None


def _may_be_quantized(value: relax.Expr) -> bool:
    """Whether quantisations move up past an operator."""
    lifts = moving.moves_all(value) or moving.picks_largest(value)
    return lifts or is_call(value, "relax.concat")


def _clip(call: relax.Expr | None) -> tuple[relax.Expr, float, float] | None:
    """(x, low, high) of a call that clips the f32 values x to low..high; None for any other
    call."""
    if is_call(call, "relax.maximum", "relax.minimum"):
        for x, bound in (call.args, call.args[::-1]):
            number = scalar_constant(bound)
            if is_f32(x) and number is not None and same_shape(x, call):
                lower = is_call(call, "relax.maximum")
                return (x, number, inf) if lower else (x, -inf, number)
    if is_call(call, "relax.nn.relu") and is_f32(call):
        return call.args[0], 0.0, inf
    if is_call(call, "relax.clip") and is_f32(call):
        return call.args[0], float(call.args[1].value), float(call.args[2].value)
    return None
