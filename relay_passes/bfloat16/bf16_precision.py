"""bfloat16 precision: products and convolutions take bfloat16 operands, and give f32.

Before

    lv = R.matmul(x, const_w)                       # float32
    lv1 = R.add(lv, const_b)

After

    lv = R.astype(x, "bfloat16")
    lv1 = R.matmul(lv, const_w', out_dtype="float32")
    lv2 = R.add(lv1, const_b)

Both operands are rounded to nearest even, constants at compile time. A product of two bfloat16
numbers is exact in f32 and sums are f32, so only these two roundings lose precision.
Normalisations, softmax, residuals and biases stay f32. `raise_bf16_casts` moves the casts to where
they cost least. These stay as they are: products of unknown shape, of a vector, or of a weight that
is decoded from a smaller type (their template may round, see `partition`); convolutions whose
channels are not last, and those of each channel alone whose weight is not a constant. Where there
are no instructions for products of bfloat16, all convolutions do, and those of one pixel that have
become products: widening operands would make them slower than those of f32.
"""

from __future__ import annotations

import ml_dtypes
from tvm import ir, relax

from relay_passes.ir.bindings import variables
from relay_passes.ir.constants import array_of
from relay_passes.ir.convolution import (
    convolution_of,
    is_convolution,
    is_transposed,
    output_channels,
)
from relay_passes.ir.graph import AnyBinding, DataflowGraph, op_name, region_tensor, static_tensor
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values


def bf16_precision(convolutions: bool = True) -> ir.transform.Pass:
    """The pass; it needs A-normal form.

    Parameters
    ----------
    convolutions : bool
        Whether convolutions take bfloat16, too.
    """
    return block_pass("tvm_hybrid.bf16_precision", lambda graph: _rewrite(graph, convolutions))


def _rewrite(graph: DataflowGraph, convolutions: bool) -> list[relax.Binding] | None:
    block = Bindings()
    narrow: dict[relax.Expr, relax.Expr] = {}

    def of_narrow(binding: AnyBinding) -> relax.Expr | None:
        call = binding.value
        if not _takes_bf16(graph, call) or (_is_of_pixels(call) and not convolutions):
            return None
        a, b = (_narrow(block, arg, narrow) for arg in call.args)
        if is_convolution(call):
            return convolution_of(call, a, b, "float32")
        return relax.op.matmul(a, b, out_dtype="float32")

    return rewrite_values(graph, block, of_narrow)


def _narrow(block: Bindings, expr: relax.Expr, known: dict[relax.Expr, relax.Expr]) -> relax.Expr:
    """A value as bfloat16; made once, at its first use."""
    if expr not in known:
        if isinstance(expr, ir.GenericConst):
            rounded = array_of(expr.value).astype(ml_dtypes.bfloat16)
            known[expr] = relax.const(rounded, "bfloat16")
        else:
            known[expr] = block.emit(relax.op.astype(expr, "bfloat16"))
    return known[expr]


def _takes_bf16(graph: DataflowGraph, call: relax.Expr) -> bool:
    """Whether an expression is a f32 product or convolution that our templates know."""
    if op_name(call) != "relax.matmul" and not _is_known_convolution(call):
        return False
    tensors = [region_tensor(each) for each in (call, *call.args)]
    return all(
        tensor is not None and tensor.dtype == "float32" and len(tensor.shape) >= 2
        for tensor in tensors
    ) and not any(_is_decoded(graph, arg) for arg in call.args)


def _is_of_pixels(call: relax.Expr) -> bool:
    """Whether a call is a convolution, or the product of pixels [N, H, W, C] and a weight."""
    return is_convolution(call) or [arg.ty.ndim for arg in call.args] == [4, 2]


def _is_known_convolution(call: relax.Expr) -> bool:
    """Whether a call is a convolution with channels last, and not a transposed one."""
    if not is_convolution(call) or is_transposed(call) or output_channels(call) != -1:
        return False
    weight = static_tensor(call.args[1])
    if weight is None:
        return False
    return weight.constant or int(call.attrs.groups) == 1 or weight.shape[-2] > 1


def _is_decoded(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value is computed from constants only: a weight kept in a smaller type."""
    if not isinstance(expr, relax.Var):
        return False
    pending, seen = [expr], set()
    while pending:
        var = pending.pop()
        value = graph.definition(var)
        if value is None:
            return False
        used = [each for each in variables(value) if each not in seen]
        seen.update(used)
        pending += used
    return True
