"""Allocate: makes a tensor without elements at run time instead of keeping it as a constant.

Before

    return const                                    # R.Tensor((2, 0), "float32")

After

    empty = R.builtin.alloc_tensor(R.shape([2, 0]), "float32", 0)
    return empty

TVM 0.27 writes such a constant, but cannot read it again where the first size is not 0.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from relay_passes.ir.graph import static_tensor
from relay_passes.ir.rewrite import is_relax, map_functions, with_body


def allocate_empty() -> ir.transform.Pass:
    """The pass; it comes between CallTIRRewrite and the planning of memory."""

    @module_pass(opt_level=0, name="tvm_hybrid.allocate_empty")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_relax, _allocated)

    return run


def _allocated(function: relax.Function) -> relax.Function:
    found = _EmptyConstants()
    body = found.visit_expr(function.body)
    if not found.bindings:
        return function
    blocks = [relax.BindingBlock(found.bindings), *body.blocks]
    whole = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, body.body))
    assert isinstance(whole, relax.SeqExpr)
    return with_body(function, whole)


@mutator
class _EmptyConstants(PyExprMutator):
    """Names every constant without elements, and binds the names in `bindings`."""

    def __init__(self) -> None:
        super().__init__()
        self.bindings: list[relax.Binding] = []

    def visit_generic_const_(self, constant: ir.GenericConst) -> relax.Expr:
        """The constant, or the variable in its place."""
        tensor = static_tensor(constant)
        if tensor is None or tensor.size:
            return constant
        call = relax.op.builtin.alloc_tensor(relax.ShapeExpr(tensor.shape), tensor.dtype, 0)
        var = relax.Var("empty", constant.ty)
        self.bindings.append(relax.VarBinding(var, self.builder_.normalize(call)))
        return var
