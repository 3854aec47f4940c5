"""Scale weight: factors of the columns of activations become factors of the rows of a weight.

Before, [1, H, W, C] times [1, 1, 1, C], as after squeeze and excite

    lv = R.multiply(x, s)
    lv1 = R.matmul(lv, const_w)             # [C, N]

After

    lv = R.reshape(s, R.shape([C, 1]))
    lv1 = R.multiply(lv, const_w)
    lv2 = R.matmul(x, lv1)

The product then reads x directly, and its kernel scales the weight, block by block in cache
(tir_schedules/product/narrow_weight.py). That scales N * C numbers for each thread instead of
H * W * C in a pass over memory. Conditions: the product is f32, its factors are the same for all
rows, nothing else reads the scaled activations, and a thread has more rows than the weight has
columns.

Each term is rounded as often as before, (s w) in place of (x s): with K terms, results differ by no
more than (2 K + 4) 2^-24 of the sum of their magnitudes, unless a number over- or underflows.
"""

from __future__ import annotations

import math

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_call, op_name, static_tensor
from relay_passes.ir.rewrite import Bindings, value_pass
from tir_schedules.product.narrow_weight import SCALE

from .integer_anchor import Operand, feeds_this_alone


def scale_weight(threads: int) -> ir.transform.Pass:
    """The pass; it needs A-normal form, and comes right before `partition`.

    Parameters
    ----------
    threads : int
        That share the rows of a product.
    """

    def rewrite(graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
        found = _scaled_product(graph, call, threads)
        if found is None:
            return None
        x, scale, weight = found
        column = block.emit(relax.op.reshape(scale, (-1, 1)))
        return relax.op.matmul(x, block.emit(relax.op.multiply(column, weight)))

    return value_pass("tvm_hybrid.scale_weight", rewrite)


def _scaled_product(
    graph: DataflowGraph, call: relax.Expr, threads: int
) -> tuple[relax.Expr, relax.Expr, relax.Expr] | None:
    """(x, s, W) of a product (x * s) W that is to be x (s * W); None for anything else."""
    if op_name(call) != "relax.matmul" or str(call.ty.dtype) != "float32":
        return None
    a, w = static_tensor(call.args[0]), static_tensor(call.args[1])
    product = graph.definition(call.args[0])
    if a is None or w is None or not w.constant or len(a.shape) < 2 or len(w.shape) != 2:
        return None
    if (a.dtype, w.dtype) != ("float32", "float32") or not is_call(product, "relax.multiply"):
        return None
    k, n = w.shape
    if not k or math.ceil(math.prod(a.shape[:-1]) / threads) <= n:
        return None
    if not feeds_this_alone(graph, call.args[0]):
        return None
    for x, scale in ((*product.args,), (*product.args[::-1],)):
        tensor, factors = static_tensor(x), static_tensor(scale)
        if tensor is None or factors is None or tensor.shape != a.shape:
            continue
        if not factors.constant and (factors.size, factors.shape[-1:]) == (k, (k,)):
            return x, scale, call.args[1]
    return None


def note_scaled_weight(graph: DataflowGraph, found: Operand) -> None:
    """Lets the kernel scale a constant weight if that is done for this product alone.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    found : Operand
        The second operand of a f32 product. Its source becomes the constant, and the factors of its
        rows the input "scale".
    """
    product = graph.definition(found.source)
    if not is_call(product, "relax.multiply") or not feeds_this_alone(graph, found.source):
        return
    column, weight = product.args
    view, shape, w = graph.definition(column), static_tensor(column), static_tensor(weight)
    if not is_call(view, "relax.reshape") or shape is None or w is None:
        return
    if not w.constant or len(w.shape) != 2:
        return
    factors = static_tensor(view.args[0])
    if factors is None or shape.shape != (w.shape[0], 1) or factors.shape[-1:] != w.shape[:1]:
        return
    found.absorbed += [graph.position[column], graph.position[found.source]]
    found.source = weight
    found.attrs[SCALE] = "input"
    found.inputs["scale"] = view.args[0]
