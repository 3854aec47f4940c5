"""Concatenations: operators after them move to the parts; stacks become concatenations."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from relay_passes.ir.axes import permutation
from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor, static_tensor
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import CONVERSIONS, MOVABLE, read_elementwise
from tir_schedules.core.size import is_dynamic


@rule(*(name for name in MOVABLE if name not in CONVERSIONS))
def sink_concat(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
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
    more. Conversions have separate passes (`lift_quantize`, `sink_dequantize`, `raise_casts`).
    """
    joins = {arg: joined for arg in call.args if (joined := _joined(graph, arg)) is not None}
    found = read_elementwise(call, joins, lambda expr: isinstance(expr, ir.GenericConst))
    if found is None or len({*found.tensors}) != 1 or graph.only_user(found.tensors[0]) is None:
        return None
    source, rank = joins[found.tensors[0]], len(call.ty.shape.values)
    constants = [source.split(constant, rank) for constant in found.constants]
    parts = [
        block.emit(found.call([part] * len(found.tensors), [pieces[at] for pieces in constants]))
        for at, part in enumerate(source.parts)
    ]
    return relax.op.concat(parts, axis=source.axis)


@dataclass(frozen=True)
class _Joined:
    """A concatenation of tensors along an axis, with the extents of its parts along that axis."""

    parts: tuple[relax.Expr, ...]
    axis: int
    extents: tuple[int, ...]

    def split(self, constant: relax.Expr, rank: int) -> list[relax.Expr]:
        """The piece of a constant for each part."""
        array = constant.value.numpy()
        axis = self.axis - (rank - array.ndim)
        if axis < 0 or array.shape[axis] == 1:
            return [constant] * len(self.parts)
        ends = list(itertools.accumulate(self.extents))[:-1]
        return [
            relax.const(np.ascontiguousarray(piece), str(constant.ty.dtype))
            for piece in np.split(array, ends, axis)
        ]


def _joined(graph: DataflowGraph, expr: relax.Expr) -> _Joined | None:
    """A concatenation, mostly without other readers, that has no such part; else None."""
    value = graph.definition(expr)
    if not is_call(value, "relax.concat") or not isinstance(value.args[0], relax.Tuple):
        return None
    result, parts = region_tensor(value), tuple(value.args[0].fields)
    tensors = [region_tensor(part) for part in parts]
    if result is None or any(tensor is None for tensor in tensors):
        return None
    sizes = {part: tensor.size for part, tensor in zip(parts, tensors, strict=True) if tensor}
    own = sum(size for part, size in sizes.items() if len(graph.users_of(part)) == 1)
    if 2 * own < result.size or any(_joined(graph, part) for part in parts):
        return None
    axis = int(value.attrs.axis) % len(result.shape)
    extents = tuple(tensor.shape[axis] for tensor in tensors if tensor is not None)
    return None if is_dynamic(extents) else _Joined(parts, axis, extents)


@rule("relax.reshape")
def merge_stacks(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Merge: tensors that are stacked and then read side by side are concatenated side by side.

    Before

        lv = R.concat((a, b), axis=1)                               # a, b: [10, 1, 2, 64]
        lv1 = R.permute_dims(lv, axes=[0, 2, 1, 3])
        gv = R.reshape(lv1, R.shape([10, 2, 128]))

    After

        lv = R.reshape(a, R.shape([10, 2, 64]))
        lv1 = R.reshape(b, R.shape([10, 2, 64]))
        gv = R.concat((lv, lv1), axis=2)

    ONNX stacks the directions of recurrent layers like this; torch.export puts them side by side.
    """
    result, moved = static_tensor(call), graph.definition(call.args[0])
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
