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

from typing import TypeGuard, TypeVar

import ml_dtypes
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.bindings import variables
from relay_passes.ir.constants import array_of
from relay_passes.ir.convolution import (
    convolution_of,
    is_convolution,
    is_transposed,
    output_channels,
)
from relay_passes.ir.entries import BITS_ENTRY, MAIN
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


def bits_entry() -> ir.transform.Pass:
    """Adds a second entry to a model with bfloat16 inputs or outputs, for callers that lack the
    type.

    Before

        def main(x: R.Tensor((4, 8), "bfloat16")): ...

    After, in addition

        def main_bits(x: R.Tensor((4, 8), "uint16")):
            lv = R.memory.view(x, dtype="bfloat16")
            lv1 = main(lv)
            return R.memory.view(lv1, dtype="uint16")

    NumPy cannot pass arrays as bfloat16, but it can pass their bits as uint16. A view made inside
    the model takes a tenth of the time of one made in Python.

    The pass; it comes before operators are legalised.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.bits_entry")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        names = [gvar.name_hint for gvar in mod.get_global_vars()]
        if MAIN not in names or BITS_ENTRY in names:
            return mod
        main = mod[MAIN]
        results = _fields(main.ret_ty)
        if not any(map(_is_bfloat16, [*(param.ty for param in main.params), *results])):
            return mod
        builder = relax.BlockBuilder(mod)
        params = [relax.Var(param.name, _as(param.ty, "uint16")) for param in main.params]
        with builder.function(BITS_ENTRY, params):
            values = [
                builder.emit(_view(given, param.ty)) if _is_bfloat16(param.ty) else given
                for given, param in zip(params, main.params, strict=True)
            ]
            made = builder.emit(relax.Call(mod.get_global_var(MAIN), values, ret_ty=main.ret_ty))
            if isinstance(main.ret_ty, relax.TensorType):
                fields = [made]
            else:
                fields = [builder.emit(relax.TupleGetItem(made, i)) for i in range(len(results))]
            bits = [
                builder.emit(_view(_sized(builder, field, ty), _as(ty, "uint16")))
                if _is_bfloat16(ty)
                else field
                for field, ty in zip(fields, results, strict=True)
            ]
            single = isinstance(main.ret_ty, relax.TensorType)
            builder.emit_func_output(bits[0] if single else relax.Tuple(bits))
        return builder.get()

    return run


_Type = TypeVar("_Type", bound=ir.Type)


def _fields(ty: ir.Type) -> list[ir.Type]:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _is_bfloat16(ty: ir.Type) -> TypeGuard[relax.TensorType]:
    return isinstance(ty, relax.TensorType) and str(ty.dtype) == "bfloat16"


def _as(ty: _Type, dtype: str) -> _Type | relax.TensorType:
    """The type with other elements, if they are bfloat16."""
    return relax.TensorType(ty.shape, dtype) if _is_bfloat16(ty) else ty


def _sized(builder: relax.BlockBuilder, value: relax.Expr, ty: relax.TensorType) -> relax.Expr:
    """The value with names for its sizes, if they depend on data: a view has to know them."""
    if isinstance(ty.shape, relax.ShapeExpr):
        return value
    sizes = [tirx.Var(f"size{i}", "int64") for i in range(ty.ndim)]
    return builder.match_cast(value, relax.TensorType(sizes, str(ty.dtype)))


def _view(expr: relax.Expr, ty: relax.TensorType) -> relax.Expr:
    return relax.op.memory.view(expr, dtype=str(ty.dtype))
