"""Keeps kernels out of fusion whose sizes are written otherwise than those of their calls.

Before

    def slice(x: T.Buffer((n,)), m: T.int64, y: T.Buffer((T.max(m - 1, 0) * 5,))):
        T.func_attr({"op_pattern": 2})
    lv = R.call_tir(slice, (x, m), out_ty=R.Tensor((n * 600,), "float32"))    # m is n * 120 + 1

After

    def slice(x: T.Buffer((n,)), m: T.int64, y: T.Buffer((T.max(m - 1, 0) * 5,))):
        T.func_attr({"op_pattern": 8})
    lv = R.call_tir(slice, (x, m), out_ty=R.Tensor((n * 600,), "float32"))

A size that depends on data may have two names: m here, and n * 120 + 1, which TVM has found to be
equal. TVM's FuseTIR compares a kernel's sizes with those of its call term by term. It fails at two
products of different factors, and where two names fall on one. A kernel that is not fused is called
with these sizes as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from relay_passes.ir.graph import op_name
from relay_passes.ir.rewrite import is_relax
from tir_schedules.generic.expressions import substitute, variables_of

_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod),
    *(tirx.Min, tirx.Max, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or),
)


def unmatched_sizes() -> ir.transform.Pass:
    """The pass; it comes before TVM's FuseOps, behind AnnotateTIROpPattern."""

    @module_pass(opt_level=0, name="tvm_hybrid.unmatched_sizes")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        found = {
            call.args[0]
            for _, function in mod.functions_items()
            if is_relax(function)
            for call in _kernel_calls(function)
            if not _matches(mod[call.args[0]], call)
        }
        if not found:
            return mod
        updated = IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)
        for kernel in found:
            updated[kernel] = mod[kernel].with_attr(OP_PATTERN, OPAQUE)
        return updated

    return run


def _kernel_calls(function: relax.Function) -> Iterator[Any]:
    for block in function.body.blocks:
        for binding in block.bindings[:]:
            if op_name(binding.value) == "relax.call_tir":
                yield binding.value


def _matches(kernel: tirx.PrimFunc, call: Any) -> bool:
    """Whether FuseTIR can tell that a kernel's sizes are those of its call."""
    made = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    given = [*call.args[1].fields, *(relax.Var("made", each) for each in made)]
    pairs: list[tuple[ir.Expr, ir.Expr]] = []
    values: dict[tirx.Var, ir.Expr] = {}
    for param, argument in zip(kernel.params, given, strict=False):
        if isinstance(argument.ty, ir.PrimType):
            values[param] = argument
        elif isinstance(getattr(argument.ty, "shape", None), relax.ShapeExpr):
            pairs += zip(param.ty.shape, argument.ty.shape.values, strict=False)
    for one, other in pairs:
        if isinstance(one, tirx.Var):
            values.setdefault(one, other)
    return all(_match(one, other) and _is(one, other, values) for one, other in pairs)


def _is(param: ir.Expr, given: ir.Expr, values: dict[tirx.Var, ir.Expr]) -> bool:
    """Whether a kernel's size is the given one, in the same names; True if a name has no value."""
    if isinstance(param, tirx.IntImm):
        return True
    if any(var not in values for var in variables_of(param)):
        return True
    analyzer = Analyzer()
    found = analyzer.simplify(substitute(param, values) - given)
    return isinstance(found, tirx.IntImm) and int(found) == 0


def _match(param: ir.Expr, given: ir.Expr) -> bool:
    """Whether two sizes agree term by term, as far as both are of one form."""
    if isinstance(param, tirx.IntImm):
        return isinstance(given, tirx.IntImm) and int(param) == int(given)
    if not isinstance(param, _BINARY) or type(param) is not type(given):
        return True
    return _match(param.a, given.a) and _match(param.b, given.b)
