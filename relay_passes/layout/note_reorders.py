"""Notes which reorders are in no region, and how many bytes each of them moves.

lv = R.permute_dims(image, [0, 2, 3, 1])    ->    "reorder NCHW -> NHWC of image: 602112 bytes"
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.axes import reorder_axes
from relay_passes.ir.decisions import REORDER, Decision, DecisionLog
from relay_passes.ir.functions import is_region_function
from relay_passes.ir.graph import known_tensor, op_name

from .channel_layouts import Form

_NONE: Mapping[relax.Expr, relax.Expr] = {}
_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}


def note_reorders(decisions: DecisionLog) -> ir.transform.Pass:
    """The pass; it changes nothing and leaves one decision for every permutation."""

    @module_pass(opt_level=0, name="tvm_hybrid.note_reorders")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        for _, function in mod.functions_items():
            if isinstance(function, relax.Function) and not is_region_function(function):
                _note(function, decisions)
        return mod

    return run


def _note(function: relax.Function, decisions: DecisionLog) -> None:
    """One decision for every permutation in a function."""
    reshaped: dict[relax.Expr, relax.Expr] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if op_name(value) == "relax.reshape":
                reshaped[binding.var] = reshaped.get(value.args[0], value.args[0])
            reason = describe_reorder(value, reshaped)
            if reason:
                node = str(binding.var.name)
                decisions.append(Decision(node=node, op=REORDER, taken=False, reason=reason))


def describe_reorder(call: relax.Expr, reshaped: Mapping[relax.Expr, relax.Expr] = _NONE) -> str:
    """What a permutation reorders; "" if an expression moves nothing.

    Parameters
    ----------
    call : relax.Expr
        Any expression.
    reshaped : mapping
        What variables are reshapes of, for their name.
    """
    order = reorder_axes(call)
    if order is None:
        return ""
    tensor = known_tensor(call.args[0])
    form = Form(tensor.shape, tensor.dtype)
    name = getattr(reshaped.get(call.args[0], call.args[0]), "name", "a constant")
    return f"reorder {_letters(order)} of {name}: {form.bytes} bytes"


def _letters(order: tuple[int, ...]) -> str:
    rank = len(order)
    spatial = _SPATIAL.get(rank, "")
    if spatial and order == (0, *range(2, rank), 1):
        return f"NC{spatial} -> N{spatial}C"
    if spatial and order == (0, rank - 1, *range(1, rank - 1)):
        return f"N{spatial}C -> NC{spatial}"
    return f"by axes {', '.join(map(str, order))}"
