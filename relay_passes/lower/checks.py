"""Checks of arguments: what a kernel may skip, what comes first, what is an error."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import Pass, PassContext, Sequential, module_pass
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, get_tir_pipeline, register_tir_pipeline

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.base.tvm_compat.relax import OWN_RESULTS, OWN_VIEWS
from microkernels.base.tvm_compat.tir import IMPORT_LLVM
from relay_passes.ir.graph import op_name
from tir_schedules.core.emission import children, with_children

from .one_kernel import accept_bits

# Skip checks: kernels that see only tensors of the program itself do not check them.
#
# Before
#
#     def tvm_hybrid_matmul(...):         # machine code
#         assert the number of arguments, their types, shapes, strides, ...
#         compute(...)
#
# After
#
#     def tvm_hybrid_matmul(...):
#         compute(...)
#
# TVM lets every kernel check its arguments whenever it is called. Two fifths of the instructions of
# a small model are for that. A caller of the program may err, so kernels that read what comes from
# outside check it. But tensors that the program allocates, and its constants, are what their
# kernels were built for.


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


PIPELINE = "tvm_hybrid_check_first"


def checking_pipeline() -> str:
    """The name of TVM's default pipeline with `check_first` among its last passes."""
    if PIPELINE not in PIPELINE_MAP:
        register_tir_pipeline(PIPELINE, _pipeline_first)
    return PIPELINE


def _pipeline_first() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    lower, finalize_host, finalize_device = get_tir_pipeline("default")
    return lower, lambda: Sequential([check_first(), finalize_host()]), finalize_device


def check_first() -> Pass:
    """Check first: a kernel that needs AMX tiles asks for them before it allocates memory.

    Before

        scratch = alloc_buffer(...)         # TVMBackendAllocWorkspace
        assert tvm_hybrid_amx_permission() == 0
        compute(..., scratch)

    After

        assert tvm_hybrid_amx_permission() == 0
        scratch = alloc_buffer(...)
        compute(..., scratch)

    TVM moves what a kernel of one thread allocates to its beginning. A call that is refused behind
    it would never free it.

    Moves checks of permission in front of the allocations beside them.
    """

    @module_pass(opt_level=0, name=PIPELINE)
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        changed = {
            gvar: f.with_body(_ordered(f.body)) if isinstance(f, tirx.PrimFunc) else f
            for gvar, f in mod.functions_items()
        }
        return IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)

    return run


def _ordered(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement whose first check, if it has one, comes before what is allocated beside it.

    No check lies in a loop.
    """
    if isinstance(statement, tirx.For):
        return statement
    inside = children(statement)
    for place, each in enumerate(inside):
        if _is_check_first(each):
            rest = [*inside[:place], *inside[place + 1 :]]
            memory = (at for at, other in enumerate(rest) if isinstance(other, tirx.AllocBuffer))
            first = min(next(memory, place), place)
            return with_children(statement, [*rest[:first], each, *rest[first:]])
        ordered = _ordered(each)
        if not ordered.same_as(each):
            return with_children(statement, [*inside[:place], ordered, *inside[place + 1 :]])
    return statement


def _is_check_first(statement: tirx.Stmt) -> bool:
    """Whether a statement is what `emit_permission_check` emits."""
    return (
        isinstance(statement, tirx.AttrStmt)
        and statement.attr_key == IMPORT_LLVM
        and str(getattr(statement.value, "value", "")) == PERMISSION_LLVM_IR
    )
