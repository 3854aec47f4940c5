"""Softmax: recognised in written-out form, and made safe for rows that see no key."""

from __future__ import annotations

import math

import numpy as np
from tvm import ir, relax

from relay_passes.ir.axes import reduced_axes
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor, scalar_constant
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule


@rule("relax.matmul")
def safe_softmax(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Zeroes the rows that see no key after the product, not before it.

    Before

        lv = R.add(scores, mask)
        lv1 = R.nn.softmax(lv)
        lv2 = R.isnan(lv1)
        lv3 = R.where(lv2, R.const(0.0), lv1)           # all rows whose mask is -inf throughout
        lv3 = R.where(lv2, R.const(0.0), lv1)           # rows whose mask is all -inf become 0

    After

        lv1 = R.nn.softmax(R.add(scores, mask))
        lv2 = R.matmul(lv1, v)
        lv3 = R.max(R.where(R.greater(mask, -inf), 1, 0), axis=-1, keepdims=True)
        gv = R.where(R.greater(lv3, 0), lv2, R.const(0.0))

    PyTorch exports attention with a boolean mask in this form to ONNX. torch.export tests the
    scores, with and without a mask:

        lv2 = R.logical_not(R.equal(lv, R.const(-inf)))
        lv3 = R.logical_not(R.astype(R.max(R.astype(lv2, "int8"), axis=[-1]), "bool"))
        lv4 = R.where(lv3, R.full_like(lv1, R.const(0.0)), lv1)

    Scores, softmax and product can then be one kernel, and only the mask is tested, not the matrix
    of probabilities, which may be rounded before the product. Nothing is tested if there is no
    mask, or if the mask is constant and every query sees a key. No mask makes a score NaN or +inf;
    if scores are NaN or +inf, or a whole row overflows to -inf, the result is now NaN instead of 0.
    """
    rounded = _only_use(graph, call.args[0], "relax.astype")
    guard = _only_use(graph, call.args[0] if rounded is None else rounded.args[0], "relax.where")
    softmax = None if guard is None else graph.definition(guard.args[2])
    if guard is None or not is_call(softmax, "relax.nn.softmax"):
        return None
    condition, zero, weights = guard.args
    by_scores = zeroes_blind_rows(graph, guard, softmax)
    if not by_scores:  # the guard must replace NaN weights by 0, and only these
        test = _only_use(graph, condition, "relax.isnan")
        if test is None or scalar_constant(zero) != 0.0 or not test.args[0].same_as(weights):
            return None
    if str(call.ty.dtype) != "float32" or not (by_scores or len(graph.users_of(weights)) == 2):
        return None
    tensor, masks = region_tensor(weights), _masks(graph, softmax.args[0])
    if tensor is None or int(softmax.attrs.axis) not in (-1, len(tensor.shape) - 1):
        return None
    if masks is None or not (masks or by_scores):
        return None
    for each in map(region_tensor, masks):  # f32, with a number for each key
        if each is None or each.dtype != "float32" or each.shape[-1:] != tensor.shape[-1:]:
            return None
    if rounded is not None:
        weights = block.emit(with_args(rounded, [weights]))
    product = with_args(call, [weights, call.args[1]])
    some = _some_key(block, masks) if masks else None
    if some is None:
        return product
    return relax.op.where(some, block.emit(product), relax.const(np.float32(0.0)))


def _only_use(graph: DataflowGraph, expr: relax.Expr, name: str) -> relax.Call | None:
    """The call of an operator bound to a variable with a single use; else None."""
    call = graph.definition(expr)
    return call if is_call(call, name) and graph.only_user(expr) is not None else None


_SCORING = ("relax.matmul", "relax.multiply", "relax.divide", "relax.add")


def _masks(graph: DataflowGraph, scores: relax.Expr) -> list[relax.Expr] | None:
    """The masks added between a matrix product and a softmax; None if anything else happens."""
    masks: list[relax.Expr] = []
    while True:
        call = graph.definition(scores)
        name = op_name(call)
        if not isinstance(call, relax.Call):
            return None
        if name == "relax.matmul":
            return masks
        if name in ("relax.multiply", "relax.divide") and scalar_constant(call.args[1]) is not None:
            scores = call.args[0]
            continue
        if name != "relax.add":
            return None
        left, right = call.args
        from_product = [is_call(graph.definition(each), *_SCORING) for each in (left, right)]
        if sum(from_product) != 1:
            return None
        scores, mask = (left, right) if from_product[0] else (right, left)
        masks.append(mask)


def _some_key(block: Bindings, masks: list[relax.Expr]) -> relax.Expr | None:
    """Emits whether each query sees a key; None if all queries do."""
    if all(isinstance(mask, ir.GenericConst) for mask in masks):
        total = sum(mask.value.numpy() for mask in masks)
        if (np.max(total, axis=-1) > -np.inf).all():
            return None
    total = masks[0]
    for mask in masks[1:]:
        total = block.emit(relax.op.add(total, mask))
    seen = block.emit(relax.op.greater(total, relax.const(np.float32(-np.inf))))
    # Compiled by TVM alone, a maximum of only -inf is the lowest finite number, so this counts in
    # ones. In our pipeline `reduction_identities` corrects that maximum.
    ones, zero = relax.const(np.float32(1.0)), relax.const(np.float32(0.0))
    most = block.emit(relax.op.max(block.emit(relax.op.where(seen, ones, zero)), -1, keepdims=True))
    return block.emit(relax.op.greater(most, zero))


@rule("relax.divide")
def recognize_softmax(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Recognises a written-out softmax.

    Before

        lv = R.max(x, axis=[-1], keepdims=True)
        lv1 = R.exp(R.subtract(x, lv))
        lv2 = R.sum(lv1, axis=[-1], keepdims=True)
        gv = R.divide(lv1, lv2)

    After

        gv = R.nn.softmax(x, axis=-1)

    Legalised modules have this form.
    """
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
    """The only axis that a reduction keeps with extent 1; None if it reduces others or drops it."""
    axes = reduced_axes(call)
    return axes[0] if call.attrs.keepdims and len(axes) == 1 else None


# Tests whether all scores of a row are minus infinity.
_CONDITION = ("logical_not", "astype", "max", "astype", "logical_not", "equal")


def zeroes_blind_rows(graph: DataflowGraph, guard: relax.Call, softmax: relax.Call) -> bool:
    """Whether a choice zeroes rows of a softmax whose scores are all minus infinity, as
    torch.export writes it, and is the softmax's only reader.

        lv = R.nn.softmax(scores)
        lv1 = R.logical_not(R.equal(scores, R.const(-inf)))
        lv2 = R.logical_not(R.astype(R.max(R.astype(lv1, "int8"), axis=[-1]), "bool"))
        gv = R.where(lv2, R.full_like(lv, R.const(0.0)), lv)

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    guard : relax.Call
        An R.where with the softmax as its last operand.
    softmax : relax.Call
        A softmax along the last axis.
    """
    condition, zero, weights = guard.args
    for name in _CONDITION:
        call = graph.definition(condition)
        if not is_call(call, f"relax.{name}") or graph.only_user(condition) is None:
            return False
        if name == "max" and _kept_axis(call) != int(call.args[0].ty.ndim) - 1:
            return False
        if name == "equal" and scalar_constant(call.args[1]) != -math.inf:
            return False
        condition = call.args[0]
    if not condition.same_as(softmax.args[0]):
        return False
    filled = graph.definition(zero)
    number = filled.args[1] if is_call(filled, "relax.full_like", "relax.full") else zero
    if scalar_constant(number) != 0.0 and not is_call(filled, "relax.zeros_like", "relax.zeros"):
        return False
    # R.zeros_like of the softmax only reads its shape.
    others = {graph.bindings[user].var for user in graph.users_of(weights)} - {zero}
    return isinstance(weights, relax.DataflowVar) and len(others) == 1
