"""Concatenations: operators behind them move to the parts; stacks become concatenations."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from relay_passes.ir.axes import permutation
from relay_passes.ir.graph import (
    AnyBinding,
    DataflowGraph,
    is_call,
    op_name,
    region_tensor,
    static_tensor,
)
from relay_passes.ir.rewrite import Bindings, WaitingBindings, block_pass, value_pass
from relay_passes.ir.traits import CONVERSIONS, read_elementwise
from tir_schedules.core.size import is_open


def sink_concat() -> ir.transform.Pass:
    """Moves elementwise operators after a concatenation to its parts.

    Before

        lv = R.concat((a, b), axis=-1)                      # [1, 7, 7, 16], [1, 7, 7, 24]
        lv1 = R.multiply(lv, const_s)                       # [40]
        gv = R.nn.relu(lv1)

    After

        lv = R.multiply(a, const_s[0:16])
        lv1 = R.nn.relu(lv)
        lv2 = R.multiply(b, const_s[16:40])
        lv3 = R.nn.relu(lv2)
        gv = R.concat((lv1, lv3), axis=-1)

    There they are fused into the regions that compute the parts, and the concatenation costs
    nothing, because the parts are written in place (`concat_in_place`). This is done only if most
    of the result has no other reader: a part with another reader would be read and written once
    more. Conversions have passes of their own (`lift_quantize`, `sink_dequantize`,
    `raise_bf16_casts`).

    The pass; it needs A-normal form.
    """
    return block_pass("tvm_hybrid.sink_concat", _rewrite)


@dataclass(frozen=True)
class _Joined:
    """A concatenation that waits.

    Attributes
    ----------
    parts : tuple of relax.Expr
        The tensors.
    axis : int
        Along which.
    extents : tuple of int
        Of each of them along the axis.
    """

    parts: tuple[relax.Expr, ...]
    axis: int
    extents: tuple[int, ...]

    def split(self, constant: relax.Expr, rank: int) -> list[relax.Expr]:
        """What of a constant each part meets."""
        array = constant.value.numpy()
        axis = self.axis - (rank - array.ndim)
        if axis < 0 or array.shape[axis] == 1:
            return [constant] * len(self.parts)
        ends = list(itertools.accumulate(self.extents))[:-1]
        return [
            relax.const(np.ascontiguousarray(piece), str(constant.ty.dtype))
            for piece in np.split(array, ends, axis)
        ]


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    return _Block(graph).rewritten()


class _Block(WaitingBindings[_Joined]):
    """A block under construction, in which concatenations wait until somebody needs them."""

    def held(self, binding: AnyBinding) -> _Joined | None:
        """A concatenation, or an operator on the parts of one."""
        joined = self.concat(binding.value)
        if joined is None:
            joined = self.elementwise(binding.value, str(binding.var.name))
            self.found = self.found or joined is not None
        return joined

    def written(self, waiting: _Joined) -> relax.Expr:
        """The concatenation."""
        return relax.op.concat(list(waiting.parts), axis=waiting.axis)

    def concat(self, value: relax.Expr) -> _Joined | None:
        """A concatenation most of which nobody else needs."""
        if op_name(value) != "relax.concat" or not isinstance(value.args[0], relax.Tuple):
            return None
        result, parts = region_tensor(value), tuple(value.args[0].fields)
        tensors = [region_tensor(part) for part in parts]
        if result is None or any(tensor is None for tensor in tensors):
            return None
        sizes = {part: tensor.size for part, tensor in zip(parts, tensors, strict=True) if tensor}
        own = sum(size for part, size in sizes.items() if len(self.graph.users.get(part, ())) == 1)
        if 2 * own < result.size or any(part in self.waiting for part in parts):
            return None
        axis = int(value.attrs.axis) % len(result.shape)
        extents = tuple(tensor.shape[axis] for tensor in tensors if tensor is not None)
        if is_open(extents):
            return None
        return _Joined(parts, axis, extents)

    def elementwise(self, value: relax.Expr, name: str) -> _Joined | None:
        """An operator on a tensor that waits and that nobody else needs."""
        found = read_elementwise(
            value, self.waiting, lambda expr: isinstance(expr, ir.GenericConst)
        )
        if found is None or op_name(value) in CONVERSIONS or len({*found.tensors}) != 1:
            return None
        (source, *again) = found.tensors
        if len(self.graph.users[source]) != 1 or not isinstance(source, relax.DataflowVar):
            return None
        joined, rank = self.waiting[source], len(value.ty.shape.values)
        constants = [joined.split(constant, rank) for constant in found.constants]
        parts = tuple(
            self.emit(
                found.call([part] * (1 + len(again)), [pieces[at] for pieces in constants]), name
            )
            for at, part in enumerate(joined.parts)
        )
        return _Joined(parts, joined.axis, joined.extents)


def merge_stacks() -> ir.transform.Pass:
    """Merge: tensors that are stacked, and then read side by side, are put side by side.

    Before

        lv = R.concat((a, b), axis=1)                               # a, b: [10, 1, 2, 64]
        lv1 = R.permute_dims(lv, axes=[0, 2, 1, 3])
        gv = R.reshape(lv1, R.shape([10, 2, 128]))

    After

        lv = R.reshape(a, R.shape([10, 2, 64]))
        lv1 = R.reshape(b, R.shape([10, 2, 64]))
        gv = R.concat((lv, lv1), axis=2)

    ONNX stacks the directions of recurrent layers so; torch.export puts them side by side.

    The pass; it needs A-normal form.
    """
    return value_pass("tvm_hybrid.merge_stacks", _merged)


def _merged(graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """The tensors side by side; None if a call reads no stack so."""
    result = static_tensor(call) if is_call(call, "relax.reshape") else None
    moved = graph.definition(call.args[0]) if result is not None else None
    if result is None or not is_call(moved, "relax.permute_dims"):
        return None
    stack, axes = graph.definition(moved.args[0]), permutation(moved)
    if not is_call(stack, "relax.concat") or not isinstance(stack.args[0], relax.Tuple):
        return None
    pieces = [static_tensor(each) for each in stack.args[0].fields]
    axis = int(stack.attrs.axis) % len(axes)
    at = axes.index(axis)
    others = [each for each in axes if each != axis]
    if others != sorted(others) or at == len(axes) - 1:
        return None
    if any(each is None or each.shape[axis] != 1 for each in pieces):
        return None
    first = pieces[0]
    assert first is not None
    shape = [first.shape[each] for each in others]
    if list(result.shape) != [*shape[:at], len(pieces) * shape[at], *shape[at + 1 :]]:
        return None
    parts = [block.emit(relax.op.reshape(each, shape)) for each in stack.args[0].fields]
    return relax.op.concat(relax.Tuple(parts), axis=at)
