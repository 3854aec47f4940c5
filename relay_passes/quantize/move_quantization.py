"""Quantisations move: dequantisations down to products, quantisations up to what computes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import inf
from typing import Any

from tvm import ir, relax

from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, is_f32, same_shape, scalar_constant
from relay_passes.ir.moving_operators import (
    argument_axis,
    joined_axis,
    keeps_order,
    moves,
    moves_all,
    on,
    parts_of_concat,
    picks_largest,
    result_axis,
)
from relay_passes.ir.quantization import (
    Quantization,
    Quantized,
    known_value,
    read_dequantize,
    read_quantize,
)
from relay_passes.ir.rewrite import Bindings, block_rewrite, rewrite_values
from relay_passes.ir.rules import RuleGraph, rule

# Sink: moves dequantisations down past operators that only move elements.
#
# Before
#
#     lv = R.dequantize(q, s, z)
#     lv1 = R.reshape(lv, [3, 32, 12, 32])
#     lv2 = R.permute_dims(lv1, [0, 2, 3, 1])
#     lv3 = R.matmul(x, lv2)
#
# After
#
#     lv = R.reshape(q, [3, 32, 12, 32])
#     lv1 = R.permute_dims(lv, [0, 2, 3, 1])
#     lv2 = R.dequantize(lv1, s, z)
#     lv3 = R.matmul(x, lv2)
#
# Padding with zeros becomes padding with the zero point. Then 8-bit numbers are moved, and the
# dequantisation is next to the matmul that uses it. A dequantisation with several users is copied
# for each if that lets it sink. All values stay the same, bit for bit.


@block_rewrite
def sink_dequantize(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The pass; it needs A-normal form."""
    sinker = _Sinker()
    return rewrite_values(graph, sinker.block, lambda b: sinker.sunk(b.var, b.value))


_ALSO = ("relax.split", "relax.nn.pad")  # sinks past them


class _Sinker:
    """A block written anew.

    Attributes
    ----------
    quantized : dict
        Integers that stand for a value; of what a split makes, the tuple of integers.
    """

    def __init__(self) -> None:
        self.block = Bindings()
        self.quantized: dict[relax.Expr, Quantized] = {}

    def sunk(self, var: relax.Var, value: Any) -> relax.Expr | None:
        """The dequantisation to bind instead of a value; None to leave it."""
        read = read_dequantize(value)
        if read is not None:
            self.quantized[var] = read
            return None
        result: Quantized | None = None
        if isinstance(value, relax.TupleGetItem):
            parts = self.quantized.get(value.tuple_value)
            if parts is not None:
                data = self.block.emit(relax.TupleGetItem(parts.data, value.index))
                result = replace(parts, data=data)
        elif is_call(value, "relax.concat"):
            result = self._through_concat(value)
        elif is_call(value, *_ALSO) or moves(value) or picks_largest(value):
            source = self.quantized.get(value.args[0])
            result = None if source is None else self._through(value, source)
        if result is None:
            return None
        self.quantized[var] = result
        return None if is_call(value, "relax.split") else result.dequantize()

    def _through(self, call: relax.Call, source: Quantized) -> Quantized | None:
        """The integers behind an operator that moves elements."""
        quantization, changed = source.quantization, {}
        axis = quantization.axis
        if is_call(call, "relax.split"):
            if axis == joined_axis(call):
                return None
        elif is_call(call, "relax.nn.pad"):
            if axis is not None:
                return None
            if str(call.attrs.pad_mode) == "constant":  # zeros become zero points
                zero_point = scalar_constant(quantization.zero_point)
                # 0 times a scale that is not known may be no 0.
                if float(call.attrs.pad_value) or zero_point is None or quantization.known is None:
                    return None
                changed["pad_value"] = int(zero_point)
        elif picks_largest(call) and quantization.known is None:
            return None  # a scale might be negative
        elif axis is not None:
            axis = result_axis(call, axis)
            if axis is None:
                return None
        data = self.block.emit(with_args(call, [source.data, *call.args[1:]], **changed))
        return Quantized(data, quantization.along(axis), source.dtype)

    def _through_concat(self, call: relax.Call) -> Quantized | None:
        """Only if all parts have the same scales and zero points."""
        parts = [self.quantized.get(part) for part in parts_of_concat(call)]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        first, axis = known[0], joined_axis(call)
        alike = {(part.quantization.key, part.data_dtype, part.dtype) for part in known}
        if len(alike) > 1 or first.quantization.axis == axis:
            return None
        data = self.block.emit(relax.op.concat([part.data for part in known], axis))
        return replace(first, data=data)


@rule("relax.dequantize")
def fold_dequantize(_graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Fold: dequantises biases and other small constants at compile time; weights stay 8 bits.

    Before

        lv = R.dequantize(const_b, s, z)                    # int32 [N]
        lv1 = R.add(x, lv)

    After

        lv1 = R.add(x, const_b')                            # f32 [N]

    The pass; it folds constants of one axis or none, and those of 32 bits.
    """
    read = read_dequantize(call)
    if read is None or not isinstance(read.data, ir.GenericConst) or read.dtype != "float32":
        return None
    small = read.data.ty.ndim <= 1 or read.data_dtype == "int32"
    value = known_value(read) if small else None
    return None if value is None else relax.const(value)


# Lift: moves quantisations up past operators that only move elements.
#
# Before
#
#     lv = R.reshape(x, [3, 32, 12, 32])
#     lv1 = R.permute_dims(lv, [0, 2, 3, 1])
#     lv2 = R.quantize(lv1, s, z)
#
# After
#
#     lv = R.quantize(x, s, z)
#     lv1 = R.reshape(lv, [3, 32, 12, 32])
#     lv2 = R.permute_dims(lv1, [0, 2, 3, 1])
#
# The kernel that computes x can then write 8-bit numbers, and fewer bytes are moved. Quantising
# also moves up past a maximum pool, because it is monotonic. A value that is also needed in f32 is
# reshaped twice, but not permuted twice. The pass also does two simplifications:
#
# - R.quantize(R.dequantize(q, s, z), s, z) is q: (q - z) * s divided by s differs from q - z by far
#   less than a half.
# - A relu or clip is left out if the quantisation saturates at its bounds anyway.
#
# All values stay the same, bit for bit, except that a NaN may be quantised differently without a
# relu or clip. Scales and zero points must be constants: a range that is measured at run time stays
# next to the quantisation that uses it.


@block_rewrite
def lift_quantize(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The pass; it needs A-normal form."""
    lifter = _Lifter(graph)
    return rewrite_values(graph, lifter.block, lambda binding: lifter.lifted(binding.value))


class _Lifter:
    """A block written anew.

    Attributes
    ----------
    done : dict
        (value of the old block, quantisation, type) -> its integers.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self.block = Bindings()
        self.done: dict[Hashable, relax.Expr] = {}

    def lifted(self, value: relax.Expr) -> relax.Expr | None:
        """What to bind instead of a quantisation; None to leave the value."""
        quantization = read_quantize(value)
        if quantization is None or quantization.known is None:
            return None
        return self._above(value.args[0], quantization, str(value.ty.dtype))

    def _quantize(self, x: relax.Expr, quantization: Quantization, dtype: str) -> relax.Expr:
        """The integers for a value, computed as far up as they can be."""
        key = (x, quantization.key, dtype)
        if key not in self.done:
            integers = self._above(x, quantization, dtype)
            if integers is None:
                integers = self.block.emit(quantization.quantize(x, dtype))
            self.done[key] = integers
        return self.done[key]

    def _above(self, x: relax.Expr, quantization: Quantization, dtype: str) -> relax.Expr | None:
        """The same without quantising x itself; None if that cannot be."""
        call = self.graph.definition(x)
        source = read_dequantize(call)
        if source is not None:
            same = source.data_dtype == dtype and source.quantization.key == quantization.key
            return source.data if same else None
        if isinstance(call, relax.TupleGetItem):
            return self._above_split(call, quantization, dtype)
        if keeps_order(call):
            return self._above_move(call, quantization, dtype)
        if not self._only_quantized(x):
            return None
        clip = _clip(call)
        if clip is not None and quantization.saturates(*clip[1:], dtype):
            return self._quantize(clip[0], quantization, dtype)
        if is_call(call, "relax.concat"):
            axis, parts = joined_axis(call), parts_of_concat(call)
            if quantization.axis == axis or not parts:
                return None
            integers = [self._quantize(part, quantization, dtype) for part in parts]
            return self.block.emit(relax.op.concat(integers, axis))
        if moves_all(call) or picks_largest(call):
            return self._above_move(call, quantization, dtype)
        return None

    def _above_move(
        self, call: relax.Call, quantization: Quantization, dtype: str
    ) -> relax.Expr | None:
        axis = quantization.axis
        if axis is not None:
            axis = argument_axis(call, axis)
            if axis is None:
                return None
        above = self._quantize(call.args[0], quantization.along(axis), dtype)
        return self.block.emit(on(call, above))

    def _above_split(
        self, item: relax.TupleGetItem, quantization: Quantization, dtype: str
    ) -> relax.Expr | None:
        """Only if every part is quantised alike, so that one quantisation does for all."""
        parts = item.tuple_value
        call = self.graph.definition(parts)
        if not is_call(call, "relax.split") or quantization.axis == joined_axis(call):
            return None
        if not self._split_into_alike(parts, quantization, dtype):
            return None
        key = (parts, quantization.key, dtype)
        if key not in self.done:
            above = self._quantize(call.args[0], quantization, dtype)
            self.done[key] = self.block.emit(on(call, above))
        return self.block.emit(relax.TupleGetItem(self.done[key], item.index))

    def _split_into_alike(self, parts: relax.Expr, quantization: Quantization, dtype: str) -> bool:
        """Whether all that happens to the items of a tuple is this quantisation."""
        if not isinstance(parts, relax.DataflowVar):
            return False
        for position in self.graph.users[parts]:
            item = self.graph.bindings[position]
            if not isinstance(item.value, relax.TupleGetItem):
                return False
            if not isinstance(item.var, relax.DataflowVar):
                return False
            for user in self.graph.users.get(item.var, ()):
                value = self.graph.bindings[user].value
                read = read_quantize(value)
                if read is None or str(value.ty.dtype) != dtype or read.key != quantization.key:
                    return False
        return True

    def _only_quantized(self, var: relax.Expr) -> bool:
        """Whether nothing needs a value but quantisations with constants, perhaps after moves."""
        if not isinstance(var, relax.DataflowVar):
            return False
        for user in self.graph.users.get(var, ()):
            binding = self.graph.bindings[user]
            value = binding.value
            quantization = read_quantize(value)
            if quantization is None:
                lifts = moves_all(value) or picks_largest(value)
                lifts = lifts or is_call(value, "relax.concat")
                if not (lifts and self._only_quantized(binding.var)):
                    return False
            elif quantization.known is None:
                return False
        return True


def _clip(call: relax.Expr | None) -> tuple[relax.Expr, float, float] | None:
    """(x, low, high) of a call that lets f32 values of x between these through, and gives these for
    others; None if it is none."""
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
