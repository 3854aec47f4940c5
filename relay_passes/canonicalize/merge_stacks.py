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
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.call_axes import permutation
from relay_passes.ir.graph import DataflowGraph, is_call, static_tensor
from relay_passes.ir.rewrite import Bindings, value_pass


def merge_stacks() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
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
