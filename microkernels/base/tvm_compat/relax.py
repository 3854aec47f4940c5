"""What passes need of TVM 0.27 beyond its public interface: one function or constant for each need.

`tests/microkernels/base/tvm_compat/test_relax.py` shows what another version of TVM changes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx
from tvm.relax.expr import _update_type
from tvm.runtime import Module
from tvm_ffi.serialization import to_json_graph_str

OP_PATTERN = "op_pattern"
"""A kernel's attribute by which FuseOps decides; AnnotateTIROpPattern keeps it if it is set. Its
values are the numbers of TVM's enumeration OpPatternKind, which Python does not have."""

INJECTIVE = 2
"""kInjective: an element depends on one element of each operand. TVM does not see that if an index
has a dynamic size."""

OUT_ELEMENTWISE_FUSABLE = 4
"""kOutEWiseFusable: elementwise functions after this one are fused into it, but none before."""

OPAQUE = 8
"""kOpaque: FuseOps leaves the kernel alone."""

FUSED = "Primitive"
"""Attribute of the functions that FuseOps makes: FuseTIR turns them into kernels."""

SLOW_PASSES = (
    "s_tir.HoistIfThenElse",
    "s_tir.InsertHoistIfThenElse",
    "s_tir.RenormalizeSplitPattern",
    "tirx.RemoveNoOp",
)
"""Passes of TVM's lowering, by name: LLVM does their work as well."""

GPU_PASSES = (
    *("s_tir.InferFragment", "s_tir.InjectPermutedLayout", "s_tir.InjectSoftwarePipeline"),
    *("s_tir.InjectVirtualThread", "s_tir.LiftThreadBinding", "s_tir.LowerAutoCopy"),
    *("s_tir.LowerThreadAllreduce", "s_tir.LowerVtcmAlloc", "s_tir.MergeSharedMemoryAllocations"),
    *("s_tir.ThreadSync", "s_tir.TransformMmaBufferLayout", "s_tir.UnifyThreadBinding"),
)
"""Passes of TVM's lowering, by name, that look for what no kernel for a CPU has: threads of a GPU,
its memories and its instructions."""

WITHOUT_CSE = {"tirx.disable_cse_tir": True}
"""A setting of PassContext: TVM does not look for common subexpressions in kernels."""

ENTRY_CHECKS = ("vm.builtin.check_tensor_info", "vm.builtin.match_shape")
"""Functions that VMShapeLower calls at a function's entry; the first argument is checked."""

OWN_RESULTS = ("relax.vm.alloc_tensor", "vm.builtin.alloc_shape_heap", "vm.builtin.make_prim_value")
"""Operators and functions of a lowered program whose results certainly have their types."""

OWN_VIEWS = ("vm.builtin.reshape",)
"""Functions of a lowered program whose results are views of their first arguments."""

WELL_FORMED_CHECK = "WellFormedInstrument"
"""Name of TVM's instrument that checks that each pass leaves a well formed module."""

SYMBOL_PREFIX = "__tvm_ffi_"
"""Prefix of a function's name in machine code."""


def set_type(expr: relax.Expr, ty: ir.Type) -> None:
    """Gives an expression that was just made its type; TVM's constructor of GlobalVar takes none.

    Needs `tvm.relax.expr._update_type`.
    """
    _update_type(expr, ty)


def object_address(node: Any) -> int:
    """Address of an object of TVM; equal objects may have different addresses."""
    return int(node.__chandle__())


def structural_key(node: Any) -> Hashable:
    """A key that is equal for objects of TVM of equal structure, and only for them.

    The type stubs of tvm_ffi lack the constructor of this class.
    """
    return tvm_ffi.StructuralKey(node)  # type: ignore[call-arg]


def attrs_with(attrs: ir.Attrs, **changed: Any) -> ir.Attrs:
    """An operator's attributes, some of them with other values.

    Needs `__tvm_ffi_type_info__`, which names the fields of a class, and that `ir.make_node` makes
    an object of its key and all of its fields.
    """
    info = type(attrs).__tvm_ffi_type_info__
    values = {field.name: getattr(attrs, field.name) for field in info.fields}
    return ir.make_node(info.type_key, **{**values, **changed})


def compiler_library() -> Path | None:
    """The mapped file of TVM's compiler with LLVM; None if only the runtime is loaded.

    Needs `tvm.base._LOADED_LIBS`, which has the libraries of ctypes by name.
    """
    loaded = tvm.base._LOADED_LIBS.get("tvm_compiler")
    return None if loaded is None else Path(loaded._name).resolve()


def function_adder(
    builder: relax.BlockBuilder, mod: ir.IRModule, attribute: str = ""
) -> Callable[[Any, str], ir.GlobalVar]:
    """Returns a function that adds functions to a builder, under names like the given ones.

    With `attribute`, equal functions are added once; `add_func` would hash all functions of the
    module to find an equal one.

    Needs that `BlockBuilder.update_func` hashes nothing until `add_func` is called.

    Parameters
    ----------
    builder : BlockBuilder
        Gets the functions.
    mod : IRModule
        Its names are taken.
    attribute : str
        Functions are compared if this attribute is equal; "" adds every function.
    """
    taken = {str(gvar.name_hint) for gvar in mod.get_global_vars()}
    added: defaultdict[str, list[tuple[ir.GlobalVar, Any]]] = defaultdict(list)

    def add(function: Any, name: str) -> ir.GlobalVar:
        alike = added[str(function.attrs[attribute])] if attribute else []
        for known, other in alike:
            if tvm_ffi.structural_equal(other, function):
                return known
        unique = str(builder.get_unique_name(name))
        while unique in taken:
            unique = str(builder.get_unique_name(name))
        gvar = ir.GlobalVar(unique)
        set_type(gvar, function.ty)
        builder.update_func(gvar, function)
        alike.append((gvar, function))
        return gvar

    return add


Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
"""The function that LegalizeOps calls for an operator."""


def legalize_by_tvm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's own legalisation of a call of an operator.

    Needs the operator's attribute FLegalize, which is what LegalizeOps calls.
    """
    return call.op.get_attr("FLegalize")(builder, call)


def legalize(ours: Mapping[str, Legalize], once: Iterable[str]) -> ir.transform.Pass:
    """LegalizeOps with other legalisations, by the names of operators, than TVM's.

    For static views that are named in `once`, equal kernels are written once: LegalizeOps itself
    writes every kernel, and then looks for an equal one.

    Needs that a legalisation returns a call of `call_tir` with a kernel and a tuple, and that a
    view has no attribute but `axes`.
    """

    @ir.transform.module_pass(opt_level=0, name="LegalizeOps")
    def run(mod: ir.IRModule, _context: ir.transform.PassContext) -> ir.IRModule:
        views = {name: _for_views(ours[name]) for name in once}
        return relax.transform.LegalizeOps(customize_legalize_map={**ours, **views})(mod)

    return run


def _for_views(made_by: Legalize) -> Legalize:
    known: dict[Any, Any] = {}

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        source, order = call.args[0].ty, getattr(call.attrs, "axes", None)
        sizes = [list(getattr(ty.shape, "values", [None])) for ty in (source, call.ty)]
        numbers = [tuple(getattr(size, "value", None) for size in each) for each in sizes]
        key = (*numbers, str(source.dtype), None if order is None else tuple(map(int, order)))
        if any(None in each for each in numbers) or key not in known:
            known[key] = made_by(builder, call)
            return known[key]
        made = known[key]
        return relax.Call(made.op, [made.args[0], relax.Tuple(call.args[:1])], None, made.ty_args)

    return legalized


def emit_machine_code(module: tvm_ffi.Module) -> None:
    """Makes an LLVM module's machine code now, not when its first function is called.

    Needs that looking up any function does so, the module's function `get_func_names`, and that a
    function's symbol is a prefix and its name. A module that `load_llvm` made does not know the
    names of its functions; its text does.
    """
    symbols = [str(symbol) for symbol in module.get_function("get_func_names")()]
    if not symbols:
        symbols = re.findall(rf"^define .*@({SYMBOL_PREFIX}\w+)\(", module.inspect_source(), re.M)
    if symbols:
        module.get_function(symbols[0].removeprefix(SYMBOL_PREFIX))


def load_llvm(text: str) -> Module:
    """A module of kind "llvm" from the text of an LLVM module; LLVM's passes do not run on it.

    Needs the global function `ffi.Module.load_from_file.ll`, which TVM's own loader calls for files
    whose names end so.
    """
    with os.fdopen(os.memfd_create("LLVM module"), "wb") as file:
        file.write(text.encode())
        file.flush()
        load = tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")
        return load(f"/proc/self/fd/{file.fileno()}", "ll")


def llvm_version() -> int:
    """The major version of TVM's LLVM."""
    return int(tvm_ffi.get_global_func("target.llvm_version_major")())


def to_json(node: Any) -> str:
    """An object of TVM with all that it holds, as text that is equal in every process."""
    return to_json_graph_str(node)


POOL_SIZE = "runtime.NumThreads"
"""TVM's function that says how many threads the caller's pool has."""

TYPE_CODE_AT = 5
"""kDLTensorTypeCode: what `tvm_struct_get` calls the kind of a tensor's elements."""

UINT_CODE, BFLOAT_CODE = 1, 4
"""DLPack's kinds of elements: unsigned integers, bfloat16."""


def with_condition(check: tirx.AssertStmt, condition: ir.Expr) -> tirx.AssertStmt:
    """An assertion with another condition.

    Needs the global function `tirx.AssertStmt`: Python's constructor hands it the kind of the error
    and the condition in the wrong order.
    """
    make = tvm_ffi.get_global_func("tirx.AssertStmt")
    made = make(condition, check.error_kind, check.message_parts, None)
    assert isinstance(made, tirx.AssertStmt)
    return made


NUMBER_AT = 17
"""kInt64ArrayElem: what `tvm_struct_get` calls an element of an array of int64."""


def parallel_launch(name: str, types: Sequence[str]) -> str:
    """LLVM IR of a function that launches tasks of another function, `<name>_task`.

    It takes the number of tasks, 0 for all of the pool, and arguments of some types, and returns 0
    or an error. `<name>_task` takes the number of a task, the address of a pointer and of how many
    tasks there are, and that of the arguments, eight bytes each.

    Needs `TVMBackendParallelLaunch`, whose address TVM's runtime puts into a variable of each
    module; that it wakes no more threads than tasks; and that functions of an import are inlined,
    so that there is no function in it whose address could be taken.
    """
    slots = f"[{max(1, len(types))} x i64]"
    passed = "".join(f", {each} %a{i}" for i, each in enumerate(types))
    stored = "".join(
        f"  %p{i} = getelementptr {slots}, ptr %data, i32 0, i32 {i}\n"
        f"  store {each} %a{i}, ptr %p{i}\n"
        for i, each in enumerate(types)
    )
    return f"""
@__TVMBackendParallelLaunch = external global ptr
declare i32 @{name}_task(i32, ptr, ptr)

define i32 @{name}(i32 %tasks{passed}) {{
  %data = alloca {slots}
{stored}  %launch = load ptr, ptr @__TVMBackendParallelLaunch
  %error = call i32 %launch(ptr @{name}_task, ptr %data, i32 %tasks)
  ret i32 %error
}}
"""


def dataflow_function(
    params: Sequence[relax.Var], emit: Callable[[relax.BlockBuilder], relax.Expr], attrs: Any
) -> relax.Function:
    """A private function of a dataflow block, in which `emit` emits what it returns.

    TVM's own scopes put the function into a module, and hash it for that.

    Needs `BlockBuilder.begin_scope`, `end_scope`, `_begin_dataflow_block` and `_end_block`.
    """
    builder: Any = relax.BlockBuilder()
    builder.begin_scope(params)
    builder._begin_dataflow_block()
    output = builder.emit_output(emit(builder))
    body = builder.normalize(relax.SeqExpr([builder._end_block()], output))
    builder.end_scope()
    return relax.Function(params, body).with_attrs(attrs)


def end_block(builder: relax.BlockBuilder) -> None:
    """Closes the block that an error left open: TVM warns when a builder dies with one.

    Needs `BlockBuilder._end_block`.
    """
    with contextlib.suppress(Exception):
        builder._end_block()


def virtual_machine_code(mod: ir.IRModule) -> Module:
    """The program of a lowered module for TVM's virtual machine; it imports no kernels.

    `relax.build`, which `tvm.compile` calls, compiles the module's kernels, too. Needs the global
    function `relax.VMCodeGen`, which takes a builder of executables and a module.
    """
    builder = relax.ExecBuilder()
    tvm_ffi.get_global_func("relax.VMCodeGen")(builder, mod)
    return builder.get().mod
