"""Adds a second entry to a model with bfloat16 inputs or outputs, for callers that lack the type.

Before

    def main(x: R.Tensor((4, 8), "bfloat16")): ...

After, in addition

    def main_bits(x: R.Tensor((4, 8), "uint16")):
        lv = R.memory.view(x, dtype="bfloat16")
        lv1 = main(lv)
        return R.memory.view(lv1, dtype="uint16")

NumPy cannot pass arrays as bfloat16, but it can pass their bits as uint16. A view made inside the
model takes a tenth of the time of one made in Python.
"""

from __future__ import annotations

from typing import TypeGuard, TypeVar

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.entries import BITS_ENTRY, MAIN


def bits_entry() -> ir.transform.Pass:
    """The pass; it comes before operators are legalised."""

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
