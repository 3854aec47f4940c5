"""Composes views: permutations in a row, with axes of extent 1 put in or left out, become one.

Before

    lv = R.expand_dims(x, axis=[3])                 # x: [4, 8, 64]
    lv1 = R.permute_dims(lv, axes=[0, 1, 3, 2])
    lv2 = R.permute_dims(lv1, axes=[1, 0, 3, 2])
    gv = R.reshape(lv2, R.shape([8, 4, 64]))

After

    gv = R.permute_dims(x, axes=[1, 0, 2])

torch.export writes the operands of an einsum so. A permutation that others read too stays.
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.axis_view import AxisView, identity, view_axes
from relay_passes.ir.graph import DataflowGraph, is_call
from relay_passes.ir.rewrite import Bindings, value_pass


def compose_views() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.compose_views", _composed)


def _composed(graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """A view by fewer operators; None if there are as few."""
    chain: list[relax.Call] = []
    view: AxisView | None = None
    current: relax.Expr | None = call
    while isinstance(current, relax.Call):
        axes, source = view_axes(current), current.args[0] if current.args else None
        inner = None if axes is None or source is None else identity(source)
        if axes is None or inner is None or source is None:
            break
        moves = inner.then(axes).moves
        if chain and moves and graph.only_user(chain[-1].args[0]) is None:
            break
        last = tuple(range(len(axes))) if view is None else view.axes
        view = inner.then(axes).then(last)
        chain.append(current)
        current = graph.definition(source)
    if view is None or not any(is_call(each, "relax.permute_dims") for each in chain):
        return None
    fewest = int(view.moves) + int(not _is_permutation(view))
    return view.emit(block) if fewest < len(chain) else None


def _is_permutation(view: AxisView) -> bool:
    """Whether a view needs no reshape, or is the source itself."""
    if not view.moves:
        return view.shape == view.source_shape
    kept = [axis for axis in view.axes if axis is not None]
    order = kept + [axis for axis in range(len(view.source_shape)) if axis not in kept]
    return tuple(view.source_shape[axis] for axis in order) == view.shape
