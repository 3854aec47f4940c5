"""A program that only calls kernels, as one TIR function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import IRModule, ir, relax, tirx

from microkernels.base.errors import CompileError
from microkernels.vector.expressions import Expr
from relay_passes.ir.graph import bindings_of, is_call
from tir_schedules.assembled.side_by_side import Step, one_after_another
from tir_schedules.generic.expressions import substitute


def as_one_kernel(
    mod: IRModule,
    inputs: Sequence[tirx.Var],
    outputs: Sequence[tirx.Var],
    sizes: Mapping[tirx.Var, Expr] | None = None,
) -> tirx.PrimFunc:
    """As one kernel: a lowered `main` that only calls kernels becomes a TIR function.

    Before

        def main(a, b):
            lv = R.call_tir(transpose, (a,), out_ty=R.Tensor((64, 32), "float32"))
            lv1 = R.call_tir(tvm_hybrid_batch_matmul, (lv, b), out_ty=R.Tensor((64, 48), "float32"))
            gv = R.reshape(lv1, [4, 16, 48])

    After

        @T.prim_func
        def main(a, b, gv):
            lv = T.sblock_alloc_buffer((64, 32))
            ...                                     # transpose, then tvm_hybrid_batch_matmul

    A reshape is another view of the same memory.

    A module's `main` as one TIR function.

    Parameters
    ----------
    mod : IRModule
        Out of `relay_passes.lower_module.lower_module`.
    inputs, outputs : sequence of Var
        The tensors that it reads and writes, its parameters.
    sizes : mapping, optional
        What stands for the variables of `main`'s shapes, if it is not themselves.

    Raises
    ------
    CompileError
        If `main` does something else than to call kernels.
    """
    main = mod["main"]
    result = main.body.body
    results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    bindings = bindings_of(main)
    same: dict[relax.Expr, relax.Expr] = {
        each.var: each.value for each in bindings if isinstance(each.value, relax.Var)
    }
    same |= {each.var: each.value.args[0] for each in bindings if is_call(each.value, _RESHAPE)}
    buffers = dict(zip(main.params, inputs, strict=True))
    for expr, output in zip(results, outputs, strict=True):
        root = _root(expr, same)
        if root in buffers:
            raise CompileError(f"{output.name}: a result that is an input, or another result")
        buffers[root] = output
    steps, between = [], []
    known = sizes or {}
    for binding in bindings:
        if binding.var in same:
            continue
        call = binding.value
        if not is_call(call, "relax.call_tir") or len(call.args) != 2:
            raise CompileError(f"{binding.var.name} is no call of a kernel")
        if binding.var not in buffers:
            name, dtype = str(binding.var.name), str(binding.var.ty.dtype)
            buffers[binding.var] = tirx.decl_buffer(_shape(binding.var, known), dtype, name)
            between.append(buffers[binding.var])
        fields = list(call.args[1].fields)
        operands, shapes = [], []
        for arg in (*fields, binding.var):
            tensor = isinstance(arg.ty, relax.TensorType)
            root = _root(arg, same)
            if tensor and (isinstance(root, ir.GenericConst) or root not in buffers):
                raise CompileError(f"{binding.var.name} reads a constant, which a function has not")
            operands.append(buffers[root] if tensor else substitute(arg, known))
            shapes.append(_shape(arg, known) if tensor else [])
        steps.append(Step(mod[call.args[0]], tuple(operands), tuple(shapes)))
    return one_after_another(steps, [*inputs, *outputs], between)


_RESHAPE = "relax.reshape"


def _shape(expr: relax.Expr, sizes: Mapping[tirx.Var, Expr]) -> list[Expr]:
    return [substitute(extent, sizes) for extent in expr.ty.shape.values]


def _root(expr: relax.Expr, same: dict[relax.Expr, relax.Expr]) -> relax.Expr:
    """The value whose memory a value is."""
    while expr in same:
        expr = same[expr]
    return expr
