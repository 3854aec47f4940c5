"""Narrow: products of values that were widened from bfloat16 read them as they were.

Before

    lv = R.multiply(R.astype(q, "float32"), R.const(0.5))       # q, k, v: bfloat16
    lv1 = R.permute_dims(R.astype(k, "float32"), [0, 1, 3, 2])
    lv2 = R.matmul(lv, lv1)
    lv3 = R.nn.softmax(lv2)
    lv4 = R.matmul(lv3, R.astype(v, "float32"))
    gv = R.astype(lv4, "bfloat16")

After

    lv1 = R.permute_dims(k, [0, 1, 3, 2])
    lv2 = R.multiply(R.matmul(q, lv1, out_dtype="float32"), R.const(0.5))
    lv3 = R.astype(R.nn.softmax(lv2), "bfloat16")
    lv4 = R.matmul(lv3, v, out_dtype="float32")
    gv = R.astype(lv4, "bfloat16")

and convolutions of widened images and weights likewise. torch.export writes the attention of a
bfloat16 model so: all of it in float32, rounded once. A product of two bfloat16 numbers is exact in
float32, so the scores lose nothing. Weights out of a softmax are rounded where the values are
bfloat16 and the result will be, as in all attention of bfloat16 models: an error of 2^-9 of each
weight beside one of 2^-9 of the result. With `kind="float16"` the same is done with float16.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from tvm import ir, relax

from relay_passes.ir.algebra import LARGEST, LEAST, number_factor
from relay_passes.ir.constants import array_of
from relay_passes.ir.convolution import convolution_of, is_convolution, is_transposed
from relay_passes.ir.graph import AnyBinding, DataflowGraph, is_call
from relay_passes.ir.moving_operators import moves, moves_all, on
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values

NARROW, HALF, WIDE = "bfloat16", "float16", "float32"


def narrow_products(kind: str = NARROW) -> ir.transform.Pass:
    """The pass; it needs A-normal form, and comes before what computes the type in float32.

    Parameters
    ----------
    kind : str
        The narrow type: "bfloat16" or "float16".
    """
    return block_pass("tvm_hybrid.narrow_products", lambda graph: _rewrite(graph, kind))


def _rewrite(graph: DataflowGraph, kind: str) -> list[relax.Binding] | None:
    if not any(_widens(binding.value, kind) for binding in graph.bindings):
        return None
    block = Bindings()
    return rewrite_values(graph, block, lambda binding: _narrower(graph, block, binding, kind))


@dataclass(frozen=True)
class _Widened:
    """A float32 value that is narrow numbers times a factor.

    Attributes
    ----------
    source : relax.Expr
        The narrow numbers.
    factor : float
        What they are multiplied by.
    path : tuple of relax.Call
        What moves them, the first to be applied first.
    """

    source: relax.Expr
    factor: float = 1.0
    path: tuple[relax.Call, ...] = ()

    def narrow(self, block: Bindings) -> relax.Expr:
        """The numbers where they are needed."""
        value = self.source
        for call in self.path:
            value = block.emit(on(call, value))
        return value


def _narrower(
    graph: DataflowGraph, block: Bindings, binding: AnyBinding, kind: str
) -> relax.Expr | None:
    """A product of narrow operands; None if nothing is to be one."""
    call = binding.value
    if is_convolution(call) and not is_transposed(call) and str(call.ty.dtype) == WIDE:
        x, w = (_exactly(graph, arg, kind) for arg in call.args)
        return None if x is None or w is None else convolution_of(call, x, w, WIDE)
    if not is_call(call, "relax.matmul") or str(call.ty.dtype) != WIDE:
        return None
    left, right = (_widened(graph, arg, kind) for arg in call.args)
    if left is not None and right is None and kind == HALF:  # a weight that was folded
        weight = _exactly(graph, call.args[1], kind)
        right = None if weight is None else _Widened(weight)
    if right is None:
        return None
    if left is not None:
        a, factor = left.narrow(block), left.factor * right.factor
    elif _is_of_softmax(graph, call.args[0]) and _will_be_narrow(graph, binding.var, kind):
        a, factor = block.emit(relax.op.astype(call.args[0], kind)), right.factor
    else:
        return None
    product = relax.op.matmul(a, right.narrow(block), out_dtype=WIDE)
    if not LEAST <= abs(factor) <= LARGEST:
        return None
    if factor == 1.0:
        return product
    return relax.op.multiply(block.emit(product), relax.const(np.float32(factor)))


def _exactly(graph: DataflowGraph, expr: relax.Expr, kind: str) -> relax.Expr | None:
    """The same numbers in the narrow type; None if they were not that."""
    if isinstance(expr, ir.GenericConst):
        array = array_of(expr.value)
        with np.errstate(over="ignore"):
            narrow = array.astype(np.dtype(getattr(ml_dtypes, kind, kind)))
        same = np.array_equal(narrow.astype(np.float32), array)
        return relax.const(narrow, kind) if same else None
    cast = graph.definition(expr)
    return cast.args[0] if cast is not None and _widens(cast, kind) else None


def _widened(graph: DataflowGraph, expr: relax.Expr, kind: str) -> _Widened | None:
    """What a value was before it was widened; None if it was not."""
    call = graph.definition(expr)
    if not isinstance(call, relax.Call):
        return None
    if _widens(call, kind):
        return _Widened(call.args[0])
    number = number_factor(call)
    if number is not None:
        found = _widened(graph, number[0], kind)
        return found and _Widened(found.source, found.factor * number[1], found.path)
    if not moves(call):
        return None
    found = _widened(graph, call.args[0], kind)
    return found and _Widened(found.source, found.factor, (*found.path, call))


def _widens(call: relax.Expr, kind: str) -> bool:
    """Whether an expression makes float32 of the narrow type."""
    if not is_call(call, "relax.astype") or str(call.attrs.dtype) != WIDE:
        return False
    return str(call.args[0].ty.dtype) == kind


def _is_of_softmax(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value is a softmax, perhaps with rows of zeros."""
    call = graph.definition(expr)
    while moves_all(call) or is_call(call, "relax.where"):
        call = graph.definition(call.args[2 if is_call(call, "relax.where") else 0])
    return is_call(call, "relax.nn.softmax")


def _will_be_narrow(graph: DataflowGraph, var: relax.Var, kind: str) -> bool:
    """Whether whatever reads a value rounds it to the narrow type, perhaps after moving it."""
    users = graph.users.get(var, [])
    if not users or not isinstance(var, relax.DataflowVar):
        return False
    return all(_rounds(graph, graph.bindings[user], kind) for user in users)


def _rounds(graph: DataflowGraph, binding: AnyBinding, kind: str) -> bool:
    call = binding.value
    if is_call(call, "relax.astype"):
        return str(call.attrs.dtype) == kind
    return moves(call) and _will_be_narrow(graph, binding.var, kind)
