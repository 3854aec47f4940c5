"""Safe softmax: zeroes the rows that see no key after the product, not before it.

Before

    lv = R.add(scores, mask)
    lv1 = R.nn.softmax(lv)
    lv2 = R.isnan(lv1)
    lv3 = R.where(lv2, R.const(0.0), lv1)           # all rows whose mask is -inf throughout
    gv = R.matmul(lv3, v)

After

    lv1 = R.nn.softmax(R.add(scores, mask))
    lv2 = R.matmul(lv1, v)
    lv3 = R.max(R.where(R.greater(mask, -inf), 1, 0), axis=-1, keepdims=True)
    gv = R.where(R.greater(lv3, 0), lv2, R.const(0.0))

PyTorch exports attention with a boolean mask in this form to ONNX. torch.export tests the scores,
with and without a mask (see safe_rows.py):

    lv2 = R.logical_not(R.equal(lv, R.const(-inf)))
    lv3 = R.logical_not(R.astype(R.max(R.astype(lv2, "int8"), axis=[-1], keepdims=True), "bool"))
    lv4 = R.where(lv3, R.full_like(lv1, R.const(0.0)), lv1)

Scores, softmax and product can then be one kernel, and only the mask is tested, not the matrix of
probabilities, which may be rounded before the product. If the mask is constant and every query sees
a key, nothing is tested, and neither if there is none. No mask makes a score NaN or +inf; where
scores are so, or all of a row overflow to -inf, the result is now NaN and no longer 0.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    op_name,
    region_tensor,
    scalar_constant,
)
from relay_passes.ir.rewrite import Bindings, value_pass
from relay_passes.ir.with_args import with_args

from .safe_rows import zeroes_blind_rows


def safe_softmax() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.safe_softmax", _simpler)


def _simpler(graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """A product of attention without the test of weights; None for anything else."""
    if not is_call(call, "relax.matmul"):
        return None
    rounded = _only_use(graph, call.args[0], "relax.astype")
    found = _guarded(graph, call, call.args[0] if rounded is None else rounded.args[0])
    if found is None:
        return None
    weights, masks = found
    if rounded is not None:
        weights = block.emit(with_args(rounded, [weights]))
    product = with_args(call, [weights, call.args[1]])
    some = _some_key(block, masks) if masks else None
    if some is None:
        return product
    return relax.op.where(some, block.emit(product), relax.const(np.float32(0.0)))


def _guarded(
    graph: DataflowGraph, product: relax.Call, operand: relax.Expr
) -> tuple[relax.Expr, list[relax.Expr]] | None:
    """(softmax, masks of its scores) if an operand of a product is free of NaN, or None."""
    guard = _only_use(graph, operand, "relax.where")
    if guard is None or str(product.ty.dtype) != "float32":
        return None
    weights = guard.args[2]
    softmax = graph.definition(weights)
    if not is_call(softmax, "relax.nn.softmax"):
        return None
    by_scores = zeroes_blind_rows(graph, guard, softmax)
    if not by_scores and not _tests_weights(graph, guard):
        return None
    tensor = region_tensor(weights)
    last = tensor is not None and int(softmax.attrs.axis) in (-1, len(tensor.shape) - 1)
    if tensor is None or not last:
        return None
    masks = _masks(graph, softmax.args[0])
    if masks is None or not all(_covers(mask, tensor.shape) for mask in masks):
        return None
    return (weights, masks) if masks or by_scores else None


def _tests_weights(graph: DataflowGraph, guard: relax.Call) -> bool:
    """Whether weights that are NaN, and only they, become 0."""
    condition, zero, weights = guard.args
    test = _only_use(graph, condition, "relax.isnan")
    if test is None or scalar_constant(zero) != 0.0 or not test.args[0].same_as(weights):
        return False
    return len(graph.users.get(weights, ())) == 2


def _only_use(graph: DataflowGraph, expr: relax.Expr, name: str) -> relax.Call | None:
    """The call of an operator that a variable is bound to, if nothing else uses it."""
    call = graph.definition(expr)
    return call if is_call(call, name) and graph.only_user(expr) is not None else None


def _masks(graph: DataflowGraph, scores: relax.Expr) -> list[relax.Expr] | None:
    """What is added to a product of matrices on the way to the softmax; None if more happens."""
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
        from_product = [_leads_to_product(graph, each) for each in (left, right)]
        if sum(from_product) != 1:
            return None
        scores, mask = (left, right) if from_product[0] else (right, left)
        masks.append(mask)


def _leads_to_product(graph: DataflowGraph, expr: relax.Expr) -> bool:
    name = op_name(graph.definition(expr))
    return name in ("relax.matmul", "relax.multiply", "relax.divide", "relax.add")


def _covers(mask: relax.Expr, shape: tuple[int, ...]) -> bool:
    """Whether a mask is f32 and has a number for each key."""
    tensor = region_tensor(mask)
    return tensor is not None and tensor.dtype == "float32" and tensor.shape[-1:] == shape[-1:]


def _some_key(block: Bindings, masks: list[relax.Expr]) -> relax.Expr | None:
    """Whether each query sees a key; None if all do."""
    if all(isinstance(mask, ir.GenericConst) for mask in masks):
        total = sum(mask.value.numpy() for mask in masks)
        if (np.max(total, axis=-1) > -np.inf).all():
            return None
    total = masks[0]
    for mask in masks[1:]:
        total = block.emit(relax.op.add(total, mask))
    seen = block.emit(relax.op.greater(total, relax.const(np.float32(-np.inf))))
    # Compiled by TVM alone, a maximum of nothing but -inf is the least finite number: count in
    # ones. In our pipeline `reduction_identities` mends it.
    ones, zero = relax.const(np.float32(1.0)), relax.const(np.float32(0.0))
    most = block.emit(relax.op.max(block.emit(relax.op.where(seen, ones, zero)), -1, keepdims=True))
    return block.emit(relax.op.greater(most, zero))
