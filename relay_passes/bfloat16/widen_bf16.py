"""Widen: a bfloat16 model computes in f32 between products and convolutions, and rounds once.

Before

    lv = R.matmul(x, const_w)                       # all bfloat16
    lv1 = R.add(lv, const_b)
    lv2 = R.nn.gelu(lv1)
    gv = R.matmul(lv2, const_v)

After

    lv = R.matmul(x, const_w, out_dtype="float32")  # the operands are bfloat16
    lv1 = R.add(lv, const_b')                       # float32, as everything to the next cast
    lv2 = R.nn.gelu(lv1)
    lv3 = R.astype(lv2, "bfloat16")
    lv4 = R.matmul(lv3, const_v, out_dtype="float32")
    gv = R.astype(lv4, "bfloat16")

A bfloat16 model means a rounding after every operator. Here, values between two operators stay f32,
which is at least as precise (oneDNN and OpenVINO do the same). Results of norms are rounded, as
products read them. Casts that the model itself contains do round, but for those around a single
operator that is no norm: importers write operators of bfloat16 so. With `products="float32"` the
operands of products are f32 too, with `convolutions` those of convolutions. Operators that only
move elements move bfloat16 if the value is stored in it.

`widen_f16` does the same for float16 models with products or sums: reductions, pools, norms,
softmax. Operands of products become f32, but where AMX tiles multiply float16 and are faster
(`half_products`). There, casts around a norm do not round, nor those around an activation that is
written out. So no sum overflows that is divided later, as that of a mean:

    lv = R.multiply(x, x)               # all float16; 300 * 300 is inf
    gv = R.sqrt(R.mean(lv))
        ->  lv = R.astype(x, "float32")
            gv = R.astype(R.sqrt(R.mean(R.multiply(lv, lv))), "float16")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph, is_call
from relay_passes.ir.rewrite import block_pass

from .widening import HALF, NARROW, WIDE, Widening, arguments_of, is_product, is_sum

KeepsHalf = Callable[[DataflowGraph, relax.Call], bool]
FindActivations = Callable[[DataflowGraph], Mapping[relax.Var, Sequence[relax.Expr]]]


def widen_bf16(products: str = NARROW, convolutions: str = NARROW) -> ir.transform.Pass:
    """The pass; it needs A-normal form, and leaves modules without bfloat16 as they are.

    Parameters
    ----------
    products, convolutions : str
        Type of the operands of matrix products, of convolutions: "bfloat16" or "float32".
    """
    return block_pass(
        "tvm_hybrid.widen_bf16", lambda graph: _rewrite(graph, Widening(products, convolutions))
    )


def widen_f16(
    activations: FindActivations = lambda _: {}, keeps: KeepsHalf = lambda graph, call: False
) -> ir.transform.Pass:
    """The pass for float16; it leaves blocks without products and sums of it as they are.

    Parameters
    ----------
    activations : callable
        A block -> each variable that is an activation, written out, and what it may be one of.
    keeps : callable
        (block, product) -> whether its operands stay float16.
    """

    def rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
        widening = Widening(WIDE, WIDE, HALF, keeps=lambda call: keeps(graph, call))

        def comes_from_half(arg: relax.Expr) -> bool:
            cast = graph.definition(arg)
            return widening.holds(cast.args[0] if is_call(cast, "relax.astype") else arg)

        values = (each.value for each in graph.bindings)
        summing = (value for value in values if is_product(value) or is_sum(value))
        if not any(comes_from_half(arg) for value in summing for arg in value.args):
            return None
        widening.activations = activations(graph)
        return _rewrite(graph, widening)

    return block_pass("tvm_hybrid.widen_f16", rewrite)


def _rewrite(graph: DataflowGraph, widening: Widening) -> list[relax.Binding] | None:
    """The new bindings; None if nothing is narrow, or a binding is no plain assignment."""
    plain = all(isinstance(binding, relax.VarBinding) for binding in graph.bindings)
    touched = any(
        widening.holds(expr)
        for binding in graph.bindings
        for expr in (binding.var, *arguments_of(binding.value))
    )
    if not (plain and touched):
        return None
    for binding in graph.bindings:
        widening.rewrite(binding.var, binding.value)
    return widening.block.bindings
