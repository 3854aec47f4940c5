"""Checks of arguments: what a kernel may skip, what comes first, what is an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import Pass, Sequential
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, get_tir_pipeline, register_tir_pipeline

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.base.tvm_compat.relax import OWN_RESULTS, OWN_VIEWS
from microkernels.base.tvm_compat.tir import IMPORT_LLVM
from relay_passes.ir.functions import named_pass
from relay_passes.ir.graph import bindings_of, op_name, packed_name
from relay_passes.ir.rewrite import copy_module, is_kernel, is_relax, map_functions
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
    uses, own = Counter[relax.Expr](), Counter[relax.Expr]()

    def count(expr: relax.Expr) -> None:
        # A name is visited once in a function, its calls one by one.
        is_call = isinstance(expr, relax.Call)
        inside = [expr.op, *expr.args] if is_call else getattr(expr, "fields", ())
        uses.update(each for each in inside if isinstance(each, ir.GlobalVar))

    for function in filter(is_relax, mod.functions.values()):
        relax.analysis.post_order_visit(function, count)
        own.update(_called_with_own(function))
    updated = copy_module(mod)
    for gvar, function in mod.functions_items():
        # All that is done with the kernel is to call it so.
        trusts = 0 < uses[gvar] == own[gvar]
        if trusts and is_kernel(function) and not _asserts(function.body):
            updated[gvar] = function.with_attr(TRUSTING, True)
    return updated


MakePass = Callable[[], Pass]
Extend = Callable[[Pass, MakePass], tuple[Pass, MakePass]]
"""(lowering, what follows on the host) -> the same with further passes."""


def extended(name: str, base: str, extend: Extend) -> str:
    """Registers a pipeline of TVM's for kernels with further passes, under a name; the name."""

    def pipeline() -> tuple[Pass, MakePass, MakePass]:
        lower, finalize_host, finalize_device = get_tir_pipeline(base)
        return *extend(lower, finalize_host), finalize_device

    if name not in PIPELINE_MAP:
        register_tir_pipeline(name, pipeline)
    return name


def pipeline_of_trusting(name: str) -> str:
    """The name of a pipeline of TVM's that leaves out the checks of marked kernels."""
    return extended(
        f"{name}_trusting",
        name,
        lambda lower, host: (Sequential([lower, skip_checks(), accept_bits()]), host),
    )


@named_pass
def skip_checks(mod: IRModule) -> IRModule:
    """Takes the assertions out of marked kernels, once TVM has written them."""
    trusted = {g: f for g, f in mod.functions_items() if TRUSTING in (f.attrs or {})}
    if not trusted:
        return mod
    updated = copy_module(mod)
    for gvar, function in tirx.transform.SkipAssert()(IRModule(trusted)).functions_items():
        updated[gvar] = function.without_attr(TRUSTING)
    return updated


def _called_with_own(function: relax.Function) -> Iterator[ir.GlobalVar]:
    """What a function calls with nothing but tensors of its own, call by call."""
    known: set[relax.Expr] = set()

    def is_own(argument: relax.Expr) -> bool:
        return isinstance(argument, ir.GenericConst | tirx.IntImm) or argument in known

    for binding in bindings_of(function) if isinstance(function.body, relax.SeqExpr) else ():
        value = binding.value
        if not isinstance(binding, relax.VarBinding) or not isinstance(value, relax.Call):
            continue
        is_view = packed_name(value) in OWN_VIEWS and is_own(value.args[0])
        # What makes a tensor or a number of which the program knows all.
        maker = op_name(value) or packed_name(value)
        if maker == "relax.call_builtin_with_ctx":
            maker = str(getattr(value.args[0], "global_symbol", ""))
        if is_view or maker in OWN_RESULTS:
            known.add(binding.var)
        elif isinstance(value.op, ir.GlobalVar) and all(map(is_own, value.args)):
            yield value.op


def _asserts(statement: tirx.Stmt) -> bool:
    """Whether a statement is or has an assertion."""
    return isinstance(statement, tirx.AssertStmt) or any(map(_asserts, children(statement)))


def checking_pipeline() -> str:
    """The name of TVM's default pipeline with `check_first` among its last passes."""
    return extended(
        "tvm_hybrid_check_first",
        "default",
        lambda lower, host: (lower, lambda: Sequential([check_first(), host()])),
    )


@named_pass
def check_first(mod: IRModule) -> IRModule:
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

    return map_functions(mod, is_kernel, lambda kernel: kernel.with_body(_ordered(kernel.body)))


def _ordered(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement whose first check, if it has one, comes before what is allocated beside it.

    No check lies in a loop.
    """
    if isinstance(statement, tirx.For):
        return statement
    inside = children(statement)
    for place, each in enumerate(inside):
        # What `emit_permission_check` emits.
        is_import = isinstance(each, tirx.AttrStmt) and each.attr_key == IMPORT_LLVM
        text = getattr(each, "value", None) if is_import else None
        if str(getattr(text, "value", "")) == PERMISSION_LLVM_IR:
            rest = [*inside[:place], *inside[place + 1 :]]
            memory = (at for at, other in enumerate(rest) if isinstance(other, tirx.AllocBuffer))
            first = min(next(memory, place), place)
            return with_children(statement, [*rest[:first], each, *rest[first:]])
        ordered = _ordered(each)
        if not ordered.same_as(each):
            return with_children(statement, [*inside[:place], ordered, *inside[place + 1 :]])
    return statement
