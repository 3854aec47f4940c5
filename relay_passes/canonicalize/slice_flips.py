"""Slice: one row of a tensor that is turned round is a row of the tensor.

Before

    lv = R.flip(x, axis=0)                                      # x: [10, 2, 192]
    gv = R.strided_slice(lv, axes=[0], begin=[2], end=[3])

After

    gv = R.strided_slice(x, axes=[0], begin=[7], end=[8])

torch.export turns the rows of a recurrent layer's second direction round before it takes them one
by one; in ONNX they are read backwards.
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_call, static_tensor
from relay_passes.ir.rewrite import Bindings, value_pass


def slice_flips() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.slice_flips", _sliced)


def _sliced(graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """The same row without the flip; None if a call takes no single row of one."""
    if not is_call(call, "relax.strided_slice"):
        return None
    flip, cut = graph.definition(call.args[0]), static_tensor(call)
    if not is_call(flip, "relax.flip"):
        return None
    source = static_tensor(flip.args[0])
    axes, begins = (_numbers(arg) for arg in call.args[1:3])
    if source is None or cut is None or axes is None or begins is None or len(axes) != 1:
        return None
    axis, extent = axes[0] % len(source.shape), source.shape[axes[0]]
    begin = begins[0] + extent * (begins[0] < 0)
    if int(flip.attrs.axis) % len(source.shape) != axis or cut.shape[axis] != 1:
        return None
    row = extent - 1 - min(max(begin, 0), extent - 1)
    return relax.op.strided_slice(flip.args[0], [axis], [row], [row + 1])


def _numbers(arg: relax.Expr) -> list[int] | None:
    """Constant numbers of a tuple."""
    fields = getattr(arg, "fields", ())
    return (
        [int(each.value) for each in fields] if all(hasattr(e, "value") for e in fields) else None
    )
