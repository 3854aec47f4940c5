"""Plain products: a product keeps the batches of its operands, and repeats none of them.

Before

    lv = R.reshape(q, R.shape([8, 5, 16]))          # q: [2, 4, 5, 16]
    lv1 = R.reshape(k, R.shape([8, 16, 7]))         # k: [2, 4, 16, 7]
    gv = R.matmul(lv, lv1)
    lv2 = R.broadcast_to(w, R.shape([8, 16, 7]))    # w: [16, 7]
    gv1 = R.matmul(lv, lv2)

After

    lv = R.matmul(q, k)
    gv = R.reshape(lv, R.shape([8, 5, 7]))
    gv1 = R.matmul(lv, w)

torch.export writes every product of more than two axes as one of three. What stands around it, as
the mask and the softmax of an attention, has the batches of before.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import relax

from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    region_tensor,
    same_shape,
)
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import RESHAPES


@rule("relax.matmul")
def plain_products(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """A product keeps the batches of its operands, and repeats none of them.

    Before

        lv = R.reshape(q, R.shape([8, 5, 16]))          # q: [2, 4, 5, 16]
        lv1 = R.reshape(k, R.shape([8, 16, 7]))         # k: [2, 4, 16, 7]
        gv = R.matmul(lv, lv1)
        lv2 = R.broadcast_to(w, R.shape([8, 16, 7]))    # w: [16, 7]
        gv1 = R.matmul(lv, lv2)

    After

        lv = R.matmul(q, k)
        gv = R.reshape(lv, R.shape([8, 5, 7]))
        gv1 = R.matmul(lv, w)

    torch.export writes every product of more than two axes as one of three. What stands around it,
    as the mask and the softmax of an attention, has the batches of before.
    """
    narrow = _not_repeated(graph, block, call)
    product = _not_flattened(graph, block, call if narrow is None else narrow)
    if product is None:
        return narrow
    return relax.op.reshape(block.emit(product), call.ty.shape)


def _not_repeated(graph: DataflowGraph, block: Bindings, call: relax.Call) -> relax.Call | None:
    """The product of operands that are not repeated for it; None if none is."""
    args = list(call.args)
    for number, arg in enumerate(args):
        wide = graph.definition(arg)
        cast = wide if is_call(wide, "relax.astype") else None  # torch.export writes one in float16
        if cast is not None:
            wide = graph.definition(cast.args[0])
        if not is_call(wide, "relax.broadcast_to"):
            continue
        operand = wide.args[0]
        whole, source = region_tensor(arg), region_tensor(operand)
        if whole is None or source is None or whole.shape[-2:] != source.shape[-2:]:
            continue
        if cast is not None:
            operand = block.emit(with_args(cast, [operand]))
        others = [*args[:number], operand, *args[number + 1 :]]
        product = block.builder.normalize(with_args(call, others))
        if same_shape(product, call):
            args = others
    unchanged = all(new.same_as(old) for new, old in zip(args, call.args, strict=True))
    return None if unchanged else with_args(call, args)


def _not_flattened(graph: DataflowGraph, block: Bindings, call: relax.Call) -> relax.Call | None:
    """The product with the batches that its operands had; None if they have them."""
    tensors = [region_tensor(arg) for arg in call.args]
    if any(tensor is None or len(tensor.shape) != 3 for tensor in tensors):
        return None
    before = [list(_unflattened(graph, arg)) for arg in call.args]
    if not all(before) or tensors[0] is None or tensors[1] is None:
        return None
    if tensors[0].shape[0] != tensors[1].shape[0]:
        return None
    batch = before[0][0].ty.shape.values[:-2]
    shapes = [[*batch, *arg.ty.shape.values[-2:]] for arg in call.args]
    args = []
    for arg, shape, sources in zip(call.args, shapes, before, strict=True):
        wanted = block.builder.normalize(relax.op.reshape(arg, shape))
        found = next((each for each in sources if same_shape(each, wanted)), None)
        args.append(block.emit(wanted) if found is None else found)
    return with_args(call, args)


def _unflattened(graph: DataflowGraph, expr: relax.Expr) -> Iterator[relax.Expr]:
    """What a matrix of one batch axis was before that, the nearest first."""
    matrix = region_tensor(expr)
    while matrix is not None:
        call = graph.definition(expr)
        same = is_call(call, "relax.broadcast_to") and same_shape(call.args[0], expr)
        if not (same or is_call(call, *RESHAPES)) or call is None:
            return
        expr = call.args[0]
        tensor = region_tensor(expr)
        if tensor is None or tensor.shape[-2:] != matrix.shape[-2:]:
            return
        if len(tensor.shape) > 3:
            yield expr
