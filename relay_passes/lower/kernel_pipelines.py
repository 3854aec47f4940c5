"""TVM's pipelines for kernels, extended: checks skipped or moved first, fewer threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from tvm import IRModule, ir, relax, tirx
from tvm.ir import StringImm
from tvm.ir.transform import Pass, Sequential
from tvm.tirx import ForKind
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, get_tir_pipeline, register_tir_pipeline

from microkernels.amx.permission import PERMISSION_LLVM_IR
from microkernels.base.tvm_compat import relax as tvm_compat
from microkernels.base.tvm_compat.tir import IMPORT_LLVM
from relay_passes.ir.entries import BITS_ENTRY, MAIN
from relay_passes.ir.functions import TAKES_BITS, named_pass
from relay_passes.ir.graph import bindings_of, nodes_in, op_name, packed_name
from relay_passes.ir.rewrite import copy_module, is_kernel, is_relax, map_functions
from tir_schedules.core.emission import ALONE, children, with_children
from tir_schedules.generic.expressions import const_int

# Skip checks: kernels that only see tensors of the program itself do not check them.
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
# TVM makes every kernel check its arguments at every call, which takes two fifths of the
# instructions of a small model. A caller of the program may err, so kernels that read data from
# outside check it. But tensors that the program allocates, and its constants, are what their
# kernels were built for.


TRUSTING = "tvm_hybrid.trusting"  # an attribute of kernels that do not check their arguments


def trusting(mod: IRModule) -> IRModule:
    """The module with marks on kernels whose arguments all belong to the module.

    Parameters
    ----------
    mod : IRModule
        A module lowered for TVM's virtual machine. A kernel that itself asserts something is not
        marked.
    """
    uses, own = Counter[relax.Expr](), Counter[relax.Expr]()

    for caller in filter(is_relax, mod.functions.values()):
        for expr in nodes_in(caller):  # counts each use of a name, call by call
            is_call = isinstance(expr, relax.Call)
            inside = [expr.op, *expr.args] if is_call else getattr(expr, "fields", ())
            uses.update(each for each in inside if isinstance(each, ir.GlobalVar))
        own.update(_called_with_own(caller))
    updated = copy_module(mod)
    for gvar, function in mod.functions_items():
        # Every use of the kernel is a call with the module's own tensors.
        trusts = 0 < uses[gvar] == own[gvar]
        if trusts and is_kernel(function) and not _asserts(function.body):
            updated[gvar] = function.with_attr(TRUSTING, True)
    return updated


MakePass = Callable[[], Pass]
Extend = Callable[[Pass, MakePass], tuple[Pass, MakePass]]
"""(lowering, passes that follow on the host) -> both with further passes."""


def extended(name: str, base: str, extend: Extend) -> str:
    """Registers a pipeline of TVM for kernels, with further passes; returns its name."""

    def pipeline() -> tuple[Pass, MakePass, MakePass]:
        lower, finalize_host, finalize_device = get_tir_pipeline(base)
        return *extend(lower, finalize_host), finalize_device

    if name not in PIPELINE_MAP:
        register_tir_pipeline(name, pipeline)
    return name


def pipeline_of_trusting(name: str) -> str:
    """The name of a pipeline of TVM without the checks of marked kernels."""
    return extended(
        f"{name}_trusting",
        name,
        lambda lower, host: (Sequential([lower, skip_checks(), accept_bits()]), host),
    )


@named_pass
def skip_checks(mod: IRModule) -> IRModule:
    """Removes the assertions of marked kernels, once TVM has written them."""
    trusted = {g: f for g, f in mod.functions_items() if TRUSTING in (f.attrs or {})}
    if not trusted:
        return mod
    updated = copy_module(mod)
    for gvar, function in tirx.transform.SkipAssert()(IRModule(trusted)).functions_items():
        updated[gvar] = function.without_attr(TRUSTING)
    return updated


def _called_with_own(function: relax.Function) -> Iterator[ir.GlobalVar]:
    """The kernels that a function calls with only its own tensors, once per call."""
    known: set[relax.Expr] = set()

    def is_own(argument: relax.Expr) -> bool:
        return isinstance(argument, ir.GenericConst | tirx.IntImm) or argument in known

    for binding in bindings_of(function) if isinstance(function.body, relax.SeqExpr) else ():
        value = binding.value
        if not isinstance(binding, relax.VarBinding) or not isinstance(value, relax.Call):
            continue
        is_view = packed_name(value) in tvm_compat.OWN_VIEWS and is_own(value.args[0])
        # The calls that make a tensor or number fully known to the program.
        maker = op_name(value) or packed_name(value)
        if maker == "relax.call_builtin_with_ctx":
            maker = str(getattr(value.args[0], "global_symbol", ""))
        if is_view or maker in tvm_compat.OWN_RESULTS:
            known.add(binding.var)
        elif isinstance(value.op, ir.GlobalVar) and all(map(is_own, value.args)):
            yield value.op


def _asserts(statement: tirx.Stmt) -> bool:
    """Whether a statement is or contains an assertion."""
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
    """Check first: a kernel with AMX tiles asks for permission before it allocates memory.

    Before

        scratch = alloc_buffer(...)         # TVMBackendAllocWorkspace
        assert tvm_hybrid_amx_permission() == 0
        compute(..., scratch)

    After

        assert tvm_hybrid_amx_permission() == 0
        scratch = alloc_buffer(...)
        compute(..., scratch)

    TVM moves allocations of a single-threaded kernel to its beginning. If the permission were
    refused after them, the memory would never be freed.

    The pass moves checks of permission before the allocations next to them.
    """

    return map_functions(mod, is_kernel, lambda kernel: kernel.with_body(_ordered(kernel.body)))


def _ordered(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement whose first check, if it has one, comes before the allocations next to it."""
    if isinstance(statement, tirx.For):  # checks are never in loops
        return statement
    inside = children(statement)
    for place, each in enumerate(inside):
        # The form that `emit_permission_check` emits.
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


# Accept bits: the only kernel of a model also takes bfloat16 tensors as their bits.
#
# Before
#
#     assert A.dtype == "bfloat16"
#
# After
#
#     assert A.dtype == "bfloat16" or A.dtype == "uint16"
#
# NumPy cannot pass bfloat16, but it can pass the bits. If a model is one kernel, a caller that may
# pass the bits needs neither the virtual machine nor views: a call takes half the time. `main`
# itself keeps its checks of types.


@named_pass
def mark_takers_of_bits(mod: IRModule) -> IRModule:
    """Marks the kernel of a model that is one kernel; needs kernels called by `call_tir`.

    Such a model has an entry for bits (`bits_entry`).
    """
    if MAIN not in mod or BITS_ENTRY not in mod:
        return mod
    values = [each.value for each in bindings_of(mod[MAIN])]
    calls = [each for each in values if not isinstance(each, relax.Var)]
    if len(calls) != 1 or op_name(calls[0]) != "relax.call_tir":
        return mod
    updated = copy_module(mod)
    kernel = calls[0].args[0]
    updated[kernel] = mod[kernel].with_attr(TAKES_BITS, True)
    return updated


@named_pass
def accept_bits(mod: IRModule) -> IRModule:
    """Changes the checks of marked kernels, once TVM has written them."""

    def changed(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        marked = TAKES_BITS in (kernel.attrs or {})
        return kernel.with_body(_accepting(kernel.body)) if marked else kernel

    return map_functions(mod, is_kernel, changed)


def _accepting(statement: tirx.Stmt) -> tirx.Stmt:
    """A statement with the checks in it changed; loops contain none."""
    if isinstance(statement, tirx.AssertStmt):
        return tvm_compat.with_condition(statement, _or_bits(statement.condition))
    if isinstance(statement, tirx.For):
        return statement
    return with_children(statement, [_accepting(each) for each in children(statement)])


def _or_bits(condition: ir.Expr) -> ir.Expr:
    if isinstance(condition, tirx.And):
        return tirx.And(_or_bits(condition.a), _or_bits(condition.b))
    if not isinstance(condition, tirx.EQ) or const_int(condition.b) != tvm_compat.BFLOAT_CODE:
        return condition
    code = condition.a
    if op_name(code) != "tirx.tvm_struct_get" or const_int(code.args[2]) != tvm_compat.TYPE_CODE_AT:
        return condition
    return tirx.Or(condition, tirx.EQ(code, tirx.const(tvm_compat.UINT_CODE, "uint8")))


# Launch few: a parallel loop that keeps few threads busy wakes only these threads.
#
# Before
#
#     for i in T.parallel(14):            # of 56 threads
#         ...
#
# After
#
#     def kernel_few0_part(task: T.int32, tasks: T.int32, A: T.handle, B: T.handle) -> T.int32:
#         for i in range(...):            # the task's part of the loop
#             ...
#
#     pool = runtime.NumThreads()
#     kernel_few0(14 if pool > 14 else 0, A, B)      # TVMBackendParallelLaunch(..., 14)
#
# TVM's code generator asks its pool for all threads, whatever a loop's extent: each thread is woken
# and waited for, though most find nothing to do. The pool itself can launch fewer. So the loop
# becomes a separate function, and a few lines of LLVM IR launch it. A pool that has no more threads
# than the loop keeps busy is asked for all threads, as usual; it divides the loop by their number.
#
# A loop over dynamic sizes may declare when it is too small to share (`task_loop`). It is then
# launched as one task, which the calling thread runs.


THREADS = "tvm_hybrid_threads"  # an attribute of kernels: the number of threads they are made for
_MARK = "tvm_hybrid_launch_few"
FEWEST = 2  # threads of a pool that is large enough to launch fewer
# LLVM's names for the types of values that a loop may use.
_LLVM_TYPES = {"int32": "i32", "int64": "i64"}
_KEPT = ("target", "tirx.noalias")  # attributes of a kernel that its loops' functions keep


def busy_threads(extent: int, threads: int) -> int:
    """Threads that have work in a parallel loop, as TVM divides it.

    >>> busy_threads(14, 56), busy_threads(64, 48), busy_threads(100, 8)
    (14, 32, 8)
    """
    return ceil(extent / ceil(extent / threads))


def for_threads(mod: IRModule, threads: int) -> IRModule:
    """The module with kernels that declare the number of threads they are made for."""
    return map_functions(mod, is_kernel, lambda kernel: made_for(kernel, threads))


def made_for(kernel: tirx.PrimFunc, threads: int) -> tirx.PrimFunc:
    """A kernel that declares the number of threads it is made for."""
    return kernel if threads < FEWEST else kernel.with_attr(THREADS, threads)


def pipeline_for(threads: int) -> str:
    """The name of the pipeline for kernels made for a number of threads.

    It is TVM's pipeline with `check_first` and both halves of `launch_few` among the last passes.
    """
    if threads < FEWEST:
        return checking_pipeline()
    return extended(
        "tvm_hybrid_launch_few",
        checking_pipeline(),
        lambda lower, host: (lower, lambda: Sequential([ask_pool(), host(), launch_few()])),
    )


@named_pass
def ask_pool(mod: IRModule) -> IRModule:
    """Marks the loops, and asks before each how many threads the pool has."""

    def changed(function: tirx.PrimFunc) -> tirx.PrimFunc:
        threads = int(function.attrs.get(THREADS, 1))

        def marked(statement: tirx.Stmt) -> tirx.Stmt:
            if isinstance(statement, tirx.AttrStmt) and statement.attr_key == ALONE:
                assert isinstance(statement.body, tirx.For)
                return for_few(statement.body, statement.value)
            if isinstance(statement, tirx.For) and statement.kind == ForKind.PARALLEL:
                return for_few(statement, None)
            return with_children(statement, [marked(each) for each in children(statement)])

        def for_few(loop: tirx.For, alone: tirx.Expr | None) -> tirx.Stmt:
            extent = loop.extent
            busy = threads
            if isinstance(extent, tirx.IntImm):
                busy = busy_threads(int(extent.value), threads)
            if (busy >= threads and alone is None) or _captured(loop) is None:
                return loop
            pool, tasks = tirx.Var("pool", "int32"), tirx.const(0, "int32")
            if busy < threads:
                tasks = tirx.Select(pool > busy, tirx.const(busy, "int32"), tasks)
            if alone is not None:
                tasks = tirx.Select(alone, tirx.const(1, "int32"), tasks)
            launch = tirx.AttrStmt(pool, _MARK, tasks, loop)
            if busy >= threads:
                return launch
            return tirx.SeqStmt([tirx.Bind(pool, tirx.call_packed(tvm_compat.POOL_SIZE)), launch])

        if threads < FEWEST:
            return function
        return function.with_body(marked(function.body)).without_attr(THREADS)

    return map_functions(mod, is_kernel, changed)


@named_pass
def launch_few(mod: IRModule) -> IRModule:
    """Makes functions of the marked loops, and launches these functions."""
    made: dict[ir.GlobalVar, tirx.PrimFunc] = {}
    for gvar, function in mod.functions_items():
        assert is_kernel(function)
        outliner = _Outliner(function)
        made[gvar] = function.with_body(outliner.outlined(function.body))
        for part in outliner.parts:
            made[ir.GlobalVar(str(part.attrs["global_symbol"]))] = part
    return IRModule(made, attrs=mod.attrs)


@dataclass(frozen=True)
class _Captured:
    """A variable that a loop uses from outside.

    Attributes
    ----------
    argument : Expr
        The argument that is passed for it.
    parameter : Var
        The parameter that takes it in the loop's function.
    buffer : Var or None
        The buffer that is declared in the memory at the parameter; None if it is no buffer.
    llvm_type : str
        LLVM type of the parameter.
    """

    argument: tirx.Expr
    parameter: tirx.Var
    buffer: tirx.Var | None
    llvm_type: str

    def taken_from(self, data: tirx.Var, place: int) -> tirx.Stmt:
        """The statement that defines the variable in the loop's function, from its arguments."""
        number = _number_at(data, place)
        if self.llvm_type != "ptr":
            return tirx.Bind(self.parameter, tirx.Cast(str(self.parameter.ty.dtype), number))
        pointer = tirx.reinterpret(self.parameter.ty, number)
        if self.buffer is None:
            return tirx.Bind(self.parameter, pointer)
        return tirx.DeclBuffer(self.buffer, data=pointer)


def _captured(loop: tirx.For) -> list[_Captured] | None:
    """All variables that a loop uses from outside; None if one cannot be passed."""
    found = []
    for var in tirx.analysis.undefined_vars(loop, []):
        if isinstance(var.ty, tirx.BufferType):
            pointer = tirx.Var(str(var.name), var.data.ty)
            found.append(_Captured(var.data, pointer, var, "ptr"))
        elif isinstance(var.ty, ir.PointerType):
            found.append(_Captured(var, var, None, "ptr"))
        elif str(var.ty.dtype) in _LLVM_TYPES:
            found.append(_Captured(var, var, None, _LLVM_TYPES[str(var.ty.dtype)]))
        else:
            return None
    return found


class _Outliner:
    """Moves the marked loops of one kernel into functions; `parts` holds these."""

    def __init__(self, function: tirx.PrimFunc) -> None:
        self.function = function
        self.parts: list[tirx.PrimFunc] = []

    def outlined(self, statement: tirx.Stmt) -> tirx.Stmt:
        """A statement whose marked loops are launched."""
        if not isinstance(statement, tirx.AttrStmt) or statement.attr_key != _MARK:
            inside = children(statement)
            changed = [self.outlined(each) for each in inside]
            same = all(old.same_as(new) for old, new in zip(inside, changed, strict=True))
            return statement if same else with_children(statement, changed)
        loop = statement.body
        assert isinstance(loop, tirx.For)
        captured = _captured(loop)
        assert captured is not None  # else it would not be marked
        symbol = str(self.function.attrs["global_symbol"]).removeprefix(tvm_compat.SYMBOL_PREFIX)
        name = f"{symbol}_few{len(self.parts)}"
        self.parts.append(self._task(name, loop, captured))
        arguments = [statement.value, *(each.argument for each in captured)]
        failed = tirx.NE(tirx.call_extern("int32", name, *arguments), tirx.const(0, "int32"))
        stop = tirx.IfThenElse(failed, tirx.Evaluate(tirx.tvm_throw_last_error()), None)
        text = StringImm(tvm_compat.parallel_launch(name, [each.llvm_type for each in captured]))
        return tirx.AttrStmt(tirx.const(0, "int32"), IMPORT_LLVM, text, stop)

    def _task(self, name: str, loop: tirx.For, captured: list[_Captured]) -> tirx.PrimFunc:
        """The function of a task's chunk of a loop, divided as TVM's code generator does."""
        task, tasks, number = (tirx.Var(each, "int32") for each in ("task", "tasks", "number"))
        group, data = tirx.Var("group", "handle"), tirx.Var("data", "handle")
        extent = loop.extent.astype("int32")
        most = tirx.Div(extent + tasks - 1, tasks)
        count = tirx.Max(tirx.const(0, "int32"), tirx.Min(most, extent - task * most))
        own = (task * most + number).astype(str(loop.loop_var.ty.dtype))
        here = tirx.Bind(loop.loop_var, own + loop.min)
        zero = tirx.const(0, "int32")
        rounds = tirx.For(number, zero, count, ForKind.SERIAL, tirx.SeqStmt([here, loop.body]))
        # LLVM learns from a separate scope that its arguments do not overlap.
        scope = tirx.AttrStmt(zero, "compute_scope", StringImm(f"{name}_compute"), rounds)
        body: list[tirx.Stmt] = [tirx.Bind(tasks, tirx.Cast("int32", _number_at(group, 1)))]
        body += (each.taken_from(data, place) for place, each in enumerate(captured))
        kept = {key: self.function.attrs[key] for key in _KEPT if key in self.function.attrs}
        whole = tirx.SeqStmt([*body, scope, tirx.Return(zero)])
        part = tirx.PrimFunc([task, group, data], whole, ir.PrimType("int32"))
        return part.with_attrs({"global_symbol": f"{name}_task", **kept})


def _number_at(array: tirx.Var, place: int) -> tirx.Expr:
    """An element of an array of int64."""
    return tirx.tvm_struct_get(array, place, tvm_compat.NUMBER_AT, "int64")
