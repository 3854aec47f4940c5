"""Check first: a kernel that needs AMX tiles asks for them before it allocates memory.

Before

    scratch = alloc_buffer(...)         # TVMBackendAllocWorkspace
    assert tvm_hybrid_amx_permission() == 0
    compute(..., scratch)

After

    assert tvm_hybrid_amx_permission() == 0
    scratch = alloc_buffer(...)
    compute(..., scratch)

TVM moves what a kernel of one thread allocates to its beginning. A call that is refused behind it
would never free it.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule, tirx
from tvm.ir.transform import Pass, PassContext, Sequential, module_pass
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, get_tir_pipeline, register_tir_pipeline

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.base.tvm_compat.tir import IMPORT_LLVM
from tir_schedules.core.statements import children, with_children

PIPELINE = "tvm_hybrid_check_first"


def checking_pipeline() -> str:
    """The name of TVM's default pipeline with `check_first` among its last passes."""
    if PIPELINE not in PIPELINE_MAP:
        register_tir_pipeline(PIPELINE, _pipeline)
    return PIPELINE


def _pipeline() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    lower, finalize_host, finalize_device = get_tir_pipeline("default")
    return lower, lambda: Sequential([check_first(), finalize_host()]), finalize_device


def check_first() -> Pass:
    """Moves checks of permission in front of the allocations beside them."""

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
        if _is_check(each):
            rest = [*inside[:place], *inside[place + 1 :]]
            memory = (at for at, other in enumerate(rest) if isinstance(other, tirx.AllocBuffer))
            first = min(next(memory, place), place)
            return with_children(statement, [*rest[:first], each, *rest[first:]])
        ordered = _ordered(each)
        if not ordered.same_as(each):
            return with_children(statement, [*inside[:place], ordered, *inside[place + 1 :]])
    return statement


def _is_check(statement: tirx.Stmt) -> bool:
    """Whether a statement is what `emit_permission_check` emits."""
    return (
        isinstance(statement, tirx.AttrStmt)
        and statement.attr_key == IMPORT_LLVM
        and str(getattr(statement.value, "value", "")) == PERMISSION_LLVM_IR
    )
