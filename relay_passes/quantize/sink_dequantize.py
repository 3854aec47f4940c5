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
dequantisation is next to the matmul that uses it. A dequantisation with several users is copied for
each if that lets it sink. All values stay the same, bit for bit.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, relax

from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, op_name, scalar_constant
from relay_passes.ir.moving_operators import (
    joined_axis,
    moves,
    on,
    parts_of_concat,
    picks_largest,
    result_axis,
)
from relay_passes.ir.quantization import Quantized, known_value, read_dequantize
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values
from relay_passes.ir.rules import RuleGraph, rule


def sink_dequantize() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.sink_dequantize", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The block with every dequantisation sunk; None if none can be."""
    sinker = _Sinker()
    return rewrite_values(graph, sinker.block, lambda b: sinker.sunk(b.var, b.value))


class _Sinker:
    """A block written anew.

    Attributes
    ----------
    quantized : dict
        Integers that stand for a value.
    split : dict
        The same of a tuple: the tuple of integers, and what they stand for.
    """

    def __init__(self) -> None:
        self.block = Bindings()
        self.quantized: dict[relax.Expr, Quantized] = {}
        self.split: dict[relax.Expr, Quantized] = {}

    def sunk(self, var: relax.Var, value: Any) -> relax.Expr | None:
        """The dequantisation to bind instead of a value; None to leave it."""
        read = read_dequantize(value)
        if read is not None:
            self.quantized[var] = read
            return None
        result: Quantized | None = None
        if isinstance(value, relax.TupleGetItem):
            result = self._item(value)
        elif op_name(value) == "relax.split":
            self._through_split(var, value)
        elif op_name(value) == "relax.concat":
            result = self._through_concat(value)
        elif op_name(value) == "relax.nn.pad":
            result = self._through_pad(value)
        elif moves(value) or picks_largest(value):
            result = self._through(value)
        if result is None:
            return None
        self.quantized[var] = result
        return result.dequantize()

    def _through(self, call: relax.Call) -> Quantized | None:
        source = self.quantized.get(call.args[0])
        if source is None:
            return None
        if picks_largest(call) and source.quantization.known is None:
            return None  # a scale might be negative
        axis = source.quantization.axis
        if axis is not None:
            axis = result_axis(call, axis)
            if axis is None:
                return None
        data = self.block.emit(on(call, source.data))
        return Quantized(data, source.quantization.along(axis), source.dtype)

    def _through_pad(self, call: relax.Call) -> Quantized | None:
        """Zeros become zero points; other paddings copy elements."""
        source = self.quantized.get(call.args[0])
        if source is None or source.quantization.axis is not None:
            return None
        if str(call.attrs.pad_mode) != "constant":
            return Quantized(
                self.block.emit(on(call, source.data)), source.quantization, source.dtype
            )
        zero_point = scalar_constant(source.quantization.zero_point)
        if float(call.attrs.pad_value) != 0 or zero_point is None:
            return None
        if source.quantization.known is None:
            return None  # 0 times such a scale may be no 0
        padded = with_args(call, [source.data], pad_value=int(zero_point))
        return Quantized(self.block.emit(padded), source.quantization, source.dtype)

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
        return Quantized(data, first.quantization, first.dtype)

    def _through_split(self, var: relax.Var, call: relax.Call) -> None:
        source = self.quantized.get(call.args[0])
        if source is not None and source.quantization.axis != joined_axis(call):
            parts = self.block.emit(on(call, source.data))
            self.split[var] = Quantized(parts, source.quantization, source.dtype)

    def _item(self, item: relax.TupleGetItem) -> Quantized | None:
        parts = self.split.get(item.tuple_value)
        if parts is None:
            return None
        data = self.block.emit(relax.TupleGetItem(parts.data, item.index))
        return Quantized(data, parts.quantization, parts.dtype)


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
    read = _small_constant(call)
    value = None if read is None else known_value(read)
    return None if value is None else relax.const(value)


def _small_constant(call: relax.Expr) -> Quantized | None:
    """What a dequantisation that is to be folded reads; None if it is to stay."""
    read = read_dequantize(call)
    if read is None or not isinstance(read.data, ir.GenericConst) or read.dtype != "float32":
        return None
    small = read.data.ty.ndim <= 1 or read.data_dtype == "int32"
    return read if small else None
