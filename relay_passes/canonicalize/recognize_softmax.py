"""Recognises softmax where it is written out.

Before

    lv = R.max(x, axis=[-1], keepdims=True)
    lv1 = R.exp(R.subtract(x, lv))
    lv2 = R.sum(lv1, axis=[-1], keepdims=True)
    gv = R.divide(lv1, lv2)

After

    gv = R.nn.softmax(x, axis=-1)

A legalised module has it in this form.
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.call_axes import reduced_axes
from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor
from relay_passes.ir.rewrite import Replacements, block_pass, replaced


def recognize_softmax() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.recognize_softmax", lambda graph: replaced(graph, _find(graph)))


def _find(graph: DataflowGraph) -> Replacements:
    found: Replacements = {}
    for position, binding in enumerate(graph.bindings):
        call = _softmax(graph, binding.value)
        if call is not None:
            found[position] = call
    return found


def _softmax(graph: DataflowGraph, call: relax.Expr) -> relax.Expr | None:
    """A division as a softmax; None if it is none."""
    if not is_call(call, "relax.divide"):
        return None
    above, total = (graph.definition(arg) for arg in call.args)
    if not is_call(above, "relax.exp") or not is_call(total, "relax.sum"):
        return None
    if not total.args[0].same_as(call.args[0]):
        return None
    shifted = graph.definition(above.args[0])
    if not is_call(shifted, "relax.subtract"):
        return None
    largest = graph.definition(shifted.args[1])
    if not is_call(largest, "relax.max") or not largest.args[0].same_as(shifted.args[0]):
        return None
    x = region_tensor(shifted.args[0])
    axes = _kept_axis(total)
    if x is None or x.dtype != "float32" or axes is None or axes != _kept_axis(largest):
        return None
    return relax.op.nn.softmax(shifted.args[0], axes)


def _kept_axis(call: relax.Call) -> int | None:
    """The only axis that a reduction makes 1; None if there are others, or if it drops it."""
    axes = reduced_axes(call)
    return axes[0] if call.attrs.keepdims and axes is not None and len(axes) == 1 else None
