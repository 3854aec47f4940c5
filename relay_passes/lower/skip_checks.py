"""Skip checks: kernels that see only tensors of the program itself do not check them.

Before

    def tvm_hybrid_matmul(...):         # machine code
        assert the number of arguments, their types, shapes, strides, ...
        compute(...)

After

    def tvm_hybrid_matmul(...):
        compute(...)

TVM lets every kernel check its arguments whenever it is called. Two fifths of the instructions of a
small model are for that. A caller of the program may err, so kernels that read what comes from
outside check it. But tensors that the program allocates, and its constants, are what their kernels
were built for.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import Pass, PassContext, Sequential, module_pass
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, get_tir_pipeline, register_tir_pipeline

from microkernels.base.tvm_compat.relax import OWN_RESULTS, OWN_VIEWS
from relay_passes.ir.graph import op_name
from tir_schedules.core.statements import children

from .accept_bits import accept_bits

TRUSTING = "tvm_hybrid.trusting"  # an attribute of kernels that do not check their arguments


def trusting(mod: IRModule) -> IRModule:
    """The module with marks on the kernels whose arguments are all its own.

    Parameters
    ----------
    mod : IRModule
        Lowered as far as TVM's virtual machine wants. A kernel with assertions of its own is not
        marked.
    """
    calls = _Calls(mod)
    marked = {
        gvar: function.with_attr(TRUSTING, True)
        for gvar, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc) and calls.are_own(gvar) and not _asserts(function)
    }
    functions = {gvar: marked.get(gvar, function) for gvar, function in mod.functions_items()}
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def pipeline_of_trusting(name: str) -> str:
    """The name of a pipeline of TVM's that leaves out the checks of marked kernels."""
    found = f"{name}_trusting"
    if found not in PIPELINE_MAP:
        register_tir_pipeline(found, lambda: _pipeline(name))
    return found


def _pipeline(name: str) -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    lower, finalize_host, finalize_device = get_tir_pipeline(name)
    return Sequential([lower, _skip_checks(), accept_bits()]), finalize_host, finalize_device


def _skip_checks() -> Pass:
    """Takes the assertions out of marked kernels, once TVM has written them."""

    @module_pass(opt_level=0, name="tvm_hybrid.skip_checks")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        trusted = {g: f for g, f in mod.functions_items() if TRUSTING in (f.attrs or {})}
        if not trusted:
            return mod
        skipped = tirx.transform.SkipAssert()(IRModule(trusted))
        functions = dict(mod.functions_items())
        functions.update((g, f.without_attr(TRUSTING)) for g, f in skipped.functions_items())
        return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return run


class _Calls:
    """Which kernels a module's functions call with nothing but tensors of their own."""

    def __init__(self, mod: IRModule) -> None:
        self.uses: dict[relax.Expr, int] = {}
        self.own: dict[relax.Expr, int] = {}
        for function in mod.functions.values():
            if isinstance(function, relax.Function):
                relax.analysis.post_order_visit(function, self._count)
                self._read(function)

    def are_own(self, kernel: ir.GlobalVar) -> bool:
        """Whether all that is done with a kernel is to call it so."""
        return 0 < self.uses.get(kernel, 0) == self.own.get(kernel, 0)

    def _count(self, expr: relax.Expr) -> None:
        # A name is visited once in a function, its calls one by one.
        if isinstance(expr, relax.Call) and isinstance(expr.op, ir.GlobalVar):
            self.uses[expr.op] = self.uses.get(expr.op, 0) + 1
        inside = expr.args if isinstance(expr, relax.Call) else getattr(expr, "fields", ())
        for each in inside:
            if isinstance(each, ir.GlobalVar):
                self.uses[each] = self.uses.get(each, 0) + 1

    def _read(self, function: relax.Function) -> None:
        known: set[relax.Expr] = set()
        body = function.body
        for block in body.blocks if isinstance(body, relax.SeqExpr) else ():
            for binding in block.bindings:
                value = binding.value
                if not isinstance(binding, relax.VarBinding) or not isinstance(value, relax.Call):
                    continue
                if _is_own_result(value) or (
                    _packed(value) in OWN_VIEWS and _is_own(value.args[0], known)
                ):
                    known.add(binding.var)
                elif isinstance(value.op, ir.GlobalVar) and all(
                    _is_own(each, known) for each in value.args
                ):
                    self.own[value.op] = self.own.get(value.op, 0) + 1


def _is_own(argument: relax.Expr, known: set[relax.Expr]) -> bool:
    return isinstance(argument, ir.GenericConst | tirx.IntImm) or argument in known


def _is_own_result(call: relax.Call) -> bool:
    """Whether a call makes a tensor or a number of which the program knows all."""
    if op_name(call) == "relax.call_builtin_with_ctx":
        return str(getattr(call.args[0], "global_symbol", "")) in OWN_RESULTS
    return op_name(call) in OWN_RESULTS or _packed(call) in OWN_RESULTS


def _packed(call: relax.Call) -> str:
    """The name of the packed function that is called, or ""."""
    return str(call.op.global_symbol) if isinstance(call.op, relax.ExternFunc) else ""


def _asserts(function: tirx.PrimFunc) -> bool:
    """Whether a kernel has an assertion."""
    waiting = [function.body]
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, tirx.AssertStmt):
            return True
        waiting += children(statement)
    return False
