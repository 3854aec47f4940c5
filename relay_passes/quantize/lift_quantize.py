"""Lift: moves quantisations up past operators that only move elements.

Before

    lv = R.reshape(x, [3, 32, 12, 32])
    lv1 = R.permute_dims(lv, [0, 2, 3, 1])
    lv2 = R.quantize(lv1, s, z)

After

    lv = R.quantize(x, s, z)
    lv1 = R.reshape(lv, [3, 32, 12, 32])
    lv2 = R.permute_dims(lv1, [0, 2, 3, 1])

The kernel that computes x can then write 8-bit numbers, and fewer bytes are moved. Quantising also
moves up past a maximum pool, because it is monotonic. A value that is also needed in f32 is
reshaped twice, but not permuted twice. The pass also does two simplifications:

- R.quantize(R.dequantize(q, s, z), s, z) is q: (q - z) * s divided by s differs from q - z by far
  less than a half.
- A relu or clip is left out if the quantisation saturates at its bounds anyway.

All values stay the same, bit for bit, except that a NaN may be quantised differently without a relu
or clip. Scales and zero points must be constants: a range that is measured at run time stays next
to the quantisation that uses it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf

from tvm import ir, relax

from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    is_f32,
    op_name,
    same_shape,
    scalar_constant,
)
from relay_passes.ir.moving_operators import (
    argument_axis,
    joined_axis,
    keeps_order,
    moves_all,
    on,
    parts_of_concat,
    picks_largest,
)
from relay_passes.ir.quantization import Quantization, read_dequantize, read_quantize
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values


def lift_quantize() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.lift_quantize", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The block with every quantisation lifted; None if none can be."""
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
        if clip is not None and quantization.saturates(clip.low, clip.high, dtype):
            return self._quantize(clip.x, quantization, dtype)
        if is_call(call, "relax.concat"):
            return self._above_concat(call, quantization, dtype)
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

    def _above_concat(
        self, call: relax.Call, quantization: Quantization, dtype: str
    ) -> relax.Expr | None:
        axis, parts = joined_axis(call), parts_of_concat(call)
        if quantization.axis == axis or not parts:
            return None
        integers = [self._quantize(part, quantization, dtype) for part in parts]
        return self.block.emit(relax.op.concat(integers, axis))

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
                lifts = lifts or op_name(value) == "relax.concat"
                if not (lifts and self._only_quantized(binding.var)):
                    return False
            elif quantization.known is None:
                return False
        return True


@dataclass(frozen=True)
class _Clip:
    """An operator that lets values of low..high through unchanged, and replaces others by these."""

    x: relax.Expr
    low: float
    high: float


def _clip(call: relax.Expr | None) -> _Clip | None:
    """The clip that a call is, of f32 values; None if it is none."""
    name = op_name(call)
    if is_call(call, "relax.maximum", "relax.minimum"):
        for x, bound in (call.args, call.args[::-1]):
            number = scalar_constant(bound)
            if is_f32(x) and number is not None and same_shape(x, call):
                return _Clip(x, *((number, inf) if name == "relax.maximum" else (-inf, number)))
    if is_call(call, "relax.nn.relu", "relax.clip") and is_f32(call):
        low, high = (0.0, inf) if name == "relax.nn.relu" else (b.value for b in call.args[1:])
        return _Clip(call.args[0], float(low), float(high))
    return None
