"""Reorders, which move elements: consecutive ones are composed, and the others are noted."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.axes import moves, permutation, reorder_axes
from relay_passes.ir.decisions import REORDER, Decision, DecisionLog
from relay_passes.ir.functions import is_region_function
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, region_tensor
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.strided_view import StridedView
from relay_passes.ir.traits import RESHAPES

from .channel_layouts import Form


@rule("relax.permute_dims")
def compose_reorders(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Composes reorders: permutations with reshapes between them become one permutation.

    Before

        lv = R.permute_dims(x, axes=[0, 3, 1, 2])                # x: [n, 32, 32, 64]
        lv1 = R.reshape(lv, R.shape([n * 1024, 2, 16, 2]))
        lv2 = R.permute_dims(lv1, axes=[0, 2, 1, 3])
        lv3 = R.reshape(lv2, R.shape([n, 64, 256, 4]))
        gv = R.permute_dims(lv3, axes=[0, 3, 2, 1])

    After

        lv = R.reshape(x, R.shape([n, 16, 2, 16, 2, 64]))
        lv1 = R.permute_dims(lv, axes=[0, 2, 4, 1, 3, 5])
        gv = R.reshape(lv1, R.shape([n, 4, 256, 64]))

    Elements then move once, in runs of 64. Axes are split into parts that no reshape cuts; parts
    that stay side by side are joined again. Nothing is composed if another operator reads an
    intermediate value, or if a dynamic part would have to be cut. Patches of images and the ends of
    recurrent layers have this form. The rule must run after regions are formed: they are recognised
    by permutations.
    """
    chain = _chain(graph, call)
    tensors = [region_tensor(each) for each in chain]
    source = region_tensor(chain[0].args[0])
    if source is None or None in tensors or 0 in source.shape:
        return None
    view, moved = StridedView.contiguous(source.shape), 0
    for each, tensor in zip(chain, tensors, strict=True):
        assert tensor is not None
        if is_call(each, "relax.permute_dims"):
            axes = permutation(each)
            moved += moves(view.shape, axes)
            view = view.permuted(axes)
        else:
            reshaped = view.reshaped(tensor.shape)
            if reshaped is None:
                return None
            view = reshaped
    if moved < 2:
        return None
    shaped = [chain[0].args[0], *chain]  # their shapes define all symbols
    expr = chain[0].args[0]
    first = graph.definition(expr)
    if is_call(first, *RESHAPES) and graph.only_user(expr) is not None:
        expr = first.args[0]
    return view.of(expr, view.digits, shaped, block.emit)


def _chain(graph: DataflowGraph, call: relax.Call) -> list[relax.Call]:
    """Permutations and reshapes that end in a call; each is read only by the next one."""
    chain = [call]
    while True:
        value = graph.definition(chain[0].args[0])
        if not is_call(value, "relax.permute_dims", *RESHAPES):
            break
        if graph.only_user(chain[0].args[0]) is None:
            break
        chain.insert(0, value)
    while not is_call(chain[0], "relax.permute_dims"):
        chain.pop(0)
    return chain


_NONE: Mapping[relax.Expr, relax.Expr] = {}
_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}


def note_reorders(decisions: DecisionLog) -> ir.transform.Pass:
    """Notes which reorders are outside all regions, and how many bytes each of them moves.

    lv = R.permute_dims(image, [0, 2, 3, 1])    ->    "reorder NCHW -> NHWC of image: 602112 bytes"

    It changes nothing, and leaves one decision for every such permutation.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.note_reorders")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        reshaped: dict[relax.Expr, relax.Expr] = {}
        bindings = (
            binding
            for function in mod.functions.values()
            if isinstance(function, relax.Function) and not is_region_function(function)
            for block in function.body.blocks
            for binding in block.bindings
        )
        for binding in bindings:
            value = binding.value
            if is_call(value, "relax.reshape"):
                reshaped[binding.var] = reshaped.get(value.args[0], value.args[0])
            reason = describe_reorder(value, reshaped)
            if reason:
                node = str(binding.var.name)
                decisions.append(Decision(node=node, op=REORDER, taken=False, reason=reason))
        return mod

    return run


def describe_reorder(call: relax.Expr, reshaped: Mapping[relax.Expr, relax.Expr] = _NONE) -> str:
    """Describes the reorder of a permutation; "" if the expression moves nothing.

    Parameters
    ----------
    call : relax.Expr
        Any expression.
    reshaped : mapping
        Variable -> the tensor that it is a reshape of, for its name.
    """
    order = reorder_axes(call)
    if order is None:
        return ""
    tensor = known_tensor(call.args[0])
    form = Form(tensor.shape, tensor.dtype)
    name = getattr(reshaped.get(call.args[0], call.args[0]), "name", "a constant")
    how, rank = f"by axes {', '.join(map(str, order))}", len(order)
    spatial = _SPATIAL.get(rank, "")
    if spatial and order == (0, *range(2, rank), 1):
        how = f"NC{spatial} -> N{spatial}C"
    elif spatial and order == (0, rank - 1, *range(1, rank - 1)):
        how = f"N{spatial}C -> NC{spatial}"
    return f"reorder {how} of {name}: {form.bytes} bytes"
