"""Code of single kernels: assembler text for a store, runtime modules for RunCodegen."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import tvm
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext
from tvm.runtime import Module
from tvm.target import Target

from microkernels.base.errors import CompileError
from microkernels.base.tvm_compat import relax as tvm_compat
from microkernels.base.tvm_compat.relax import SYMBOL_PREFIX
from microkernels.machines.machine import Machine
from tir_schedules.core.emission import EXACT_BUFFERS

from ..ir.decisions import Decision, DecisionLog
from ..ir.functions import COMPOSITE, called_region, is_region_function, named_pass, region_of
from ..ir.graph import bindings_of, op_name
from ..ir.rewrite import copy_module, is_ordinary
from ..ir.traits import RESHAPES
from .kernel_pipelines import made_for, pipeline_for
from .lower_regions import build_kernel, config_of, decision_of

# Kernel text: a kernel's machine code as assembler text that any program can contain.
#
# Before
#
#     tvm_hybrid_any_kernel:                          # what LLVM writes for one kernel
#         jmp .LBB1_3
#         callq __tvm_set_raised_6
#         movq __TVMBackendAllocWorkspace@GOTPCREL(%rip), %rax
#
# After
#
#     tvm_hybrid_matmul3.entry:                       # in the LLVM module of a program
#         jmp .Ltvm_hybrid_matmul3.BB1_3
#         callq tvm_hybrid_matmul3.__tvm_set_raised_6
#         movq __TVMBackendAllocWorkspace@GOTPCREL(%rip), %rax
#
#     @__TVMBackendAllocWorkspace = linkonce global ptr null
#     define i32 @__tvm_ffi_tvm_hybrid_matmul3(...)   ; calls the entry
#
# A store keeps such texts from one program to the next. TVM's passes, LLVM's passes and the choice
# of instructions are then paid once; each program only runs LLVM's assembler, which takes a
# hundredth of that time. The names in a text are placeholders, because models number their kernels
# differently. Names that LLVM uses in every module are prefixed with the kernel's name, because one
# module has several kernels.
#
# LLVM must know variables that TVM's runtime fills in, so they are not in the text. Debug
# information and helper functions that a kernel does not call are left out, too. Hidden symbols, of
# which a linker keeps one copy, such as whether Linux has granted AMX, become local to each kernel.


PLACEHOLDER = "tvm_hybrid_any_kernel"
GLOBAL_SYMBOL = "global_symbol"
_MACHINE = "x86_64"  # this file reads the assembler text of this machine only

_NAME = re.compile(r"\w+", re.ASCII)
_NOISE = re.compile(r"\.(file|loc|ident|addrsig|addrsig_sym)\b")
_SECTION = re.compile(r"\.(section|text|data|bss)\b")
_LEFT_OUT = re.compile(r"\.section\s+(\.debug_|\"\.note)")
_TEMPORARY = re.compile(r"\.Ltmp\d+:$")
_POINTER = re.compile(
    r"^\.type\s+(\w+),@object\n(\.bss\n|\.section\s.*\n)?\.weak\s+\1\n\.p2align\s.*\n"
    r"\1:\n\.quad\s+0\n\.size\s+\1, 8\n",
    re.MULTILINE,
)
_HELPER = re.compile(
    r"^\.weak\s+(\w+)\n((?:\.p2align.*\n)?\.type\s+\1,@function\n(?:.*\n)*?\.cfi_endproc\n)",
    re.MULTILINE,
)
_OWN = re.compile(rf"^\.globl\s+\w*{PLACEHOLDER}\w*\n", re.MULTILINE)
_HIDDEN = re.compile(r"^\.hidden\s+(\w+)\n", re.MULTILINE)
_SHARED = re.compile(r"^\.(?:hidden|weak)\s+(\w+)\n", re.MULTILINE)
_DEFINED = re.compile(r"^([A-Za-z_][\w.]*):", re.MULTILINE)
_FORBIDDEN = re.compile(
    r"^(\.(globl|weak|hidden|protected|internal|comm|lcomm|symver)\b|\.section.*(_array|,comdat)"
    r'|"|\S*\$\S*:)',
    re.MULTILINE,
)
_STRINGS = re.compile(r"^(\.(?:ascii|asciz|string)\b.*\n)", re.MULTILINE)


class KernelCode(msgspec.Struct, frozen=True):
    """The machine code of one kernel.

    Attributes
    ----------
    text : str
        Assembler text with PLACEHOLDER in place of the kernel's name.
    pointers : tuple of str
        Variables outside the text that TVM's runtime fills in.
    """

    text: str
    pointers: tuple[str, ...]


class KernelStore(Protocol):
    """Stores the code of kernels from one program to the next; threads may use it at once."""

    def find(self, key: str) -> KernelCode | None:
        """The code stored under a key; None if there is none."""

    def keep(self, key: str, code: KernelCode) -> None:
        """Stores the code of a kernel."""


def has_texts(target: Target) -> bool:
    """Whether this file can read the assembler text of a target."""
    _layout, triple, _target = _module_head(str(target))
    return _MACHINE in triple


def kernel_key(
    kernel: tirx.PrimFunc, target: Target, pipeline: str, context: PassContext
) -> str | None:
    """SHA-256 of all that determines a kernel's code, except the versions of TVM and this package.

    The names of its variables count, too: messages of its checks contain them.

    Returns
    -------
    str or None
        None if the kernel calls other functions, which are not part of it, or has an unusual name.
    """
    text = tvm_compat.to_json(_with_placeholder(kernel))
    if '"ir.GlobalVar"' in text or not _NAME.fullmatch(str(kernel.attrs[GLOBAL_SYMBOL])):
        return None
    how = [
        tvm_compat.llvm_version(),
        str(target),
        pipeline,
        context.opt_level,
        [*map(str, context.required_pass)],
        [*map(str, context.disabled_pass)],
        str(context.config),
    ]
    digest = hashlib.sha256(msgspec.json.encode(how))
    digest.update(text.encode())
    return digest.hexdigest()


def built(kernel: tirx.PrimFunc, target: Target, pipeline: str) -> Module:
    """An LLVM module of one kernel, named PLACEHOLDER."""
    mod = IRModule({ir.GlobalVar(PLACEHOLDER): _with_placeholder(kernel)})
    return tvm.tirx.build(mod, target=target, pipeline=pipeline)


def _with_placeholder(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    return kernel.with_attr(GLOBAL_SYMBOL, PLACEHOLDER)


def code_of(assembly: str) -> KernelCode | None:
    """The code of a kernel.

    Parameters
    ----------
    assembly : str
        LLVM's assembler text for a module of one kernel, named PLACEHOLDER.

    Returns
    -------
    KernelCode or None
        None if something in it cannot be moved to another module.
    """
    lines, wanted = [], True
    for full in assembly.splitlines():
        line = full.strip()
        if _SECTION.match(line):
            wanted = not _LEFT_OUT.match(line)
        if wanted and line and not _NOISE.match(line):
            lines.append(line)
    used = set(re.findall(r"\.Ltmp\d+(?![\d:])", "\n".join(lines)))
    lines = [line for line in lines if not _TEMPORARY.match(line) or line[:-1] in used]
    text = "\n".join(lines) + "\n"
    pointers = [found[1] for found in _POINTER.finditer(text)]
    text = _POINTER.sub(r"\2", text)
    hidden = set(_HIDDEN.findall(text))
    text = _SHARED.sub(lambda found: "" if found[1] in hidden else found[0], text)
    for helper in list(_HELPER.finditer(text)):
        rest = text.replace(helper[0], "")
        called = _symbol(helper[1]).search(rest)
        text = text.replace(helper[0], helper[2]) if called else rest
    entry = SYMBOL_PREFIX + PLACEHOLDER
    text = _OWN.sub("", text)
    defined = set(_DEFINED.findall(text))
    if entry not in defined or _FORBIDDEN.search(text):
        return None
    renamed = {name: f"{PLACEHOLDER}.{name}" for name in defined if PLACEHOLDER not in name}
    renamed[entry] = f"{PLACEHOLDER}.entry"
    return KernelCode(_renamed(text, renamed), tuple(sorted(pointers)))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with symbols renamed and the placeholder added to labels; strings stay."""
    parts = _STRINGS.split(text)
    for place in range(0, len(parts), 2):
        part = parts[place]
        for name, other in names.items():
            part = _symbol(name).sub(other, part)
        parts[place] = part.replace(".L", f".L{PLACEHOLDER}.")
    return "".join(parts)


def _symbol(name: str) -> re.Pattern[str]:
    """Matches a name that is not part of another name; starting with the literal makes it fast."""
    text = re.escape(name)
    return re.compile(rf"{text}(?<![\w.]{text})(?![\w.])")


def assembled(kernels: Mapping[str, KernelCode], target: Target) -> Module:
    """An LLVM module of kernels with these names."""
    code = "".join(each.text.replace(PLACEHOLDER, name) for name, each in kernels.items())
    escaped = code.replace("\\", "\\5C").replace('"', "\\22").replace("\n", "\\0A")
    pointers = sorted({name for each in kernels.values() for name in each.pointers})
    layout, triple, described = _module_head(str(target))
    lines = [
        layout,
        triple,
        f'module asm "{escaped}"',
        *(f"@{name} = linkonce global ptr null, align 8" for name in pointers),
        *map(_entry, kernels),
        "!llvm.module.flags = !{!0}",
        f"!0 = {described}",
    ]
    return tvm_compat.load_llvm("\n".join(lines))


def _entry(name: str) -> str:
    """The function that TVM looks up: a kernel's own entry must be local to be assembled."""
    return f"""
declare i32 @{name}.entry(ptr, ptr, i32, ptr)
define i32 @{SYMBOL_PREFIX}{name}(ptr %self, ptr %arguments, i32 %count, ptr %result) {{
  %error = tail call i32 @{name}.entry(ptr %self, ptr %arguments, i32 %count, ptr %result)
  ret i32 %error
}}"""


@functools.cache
def _module_head(target: str) -> tuple[str, str, str]:
    """The head of TVM's LLVM modules for a target: data layout, triple, target description."""
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))
    text = built(nothing, Target(target), "default").inspect_source("ll")
    parts: list[Any] = [
        re.search(r"^target datalayout = .*$", text, re.MULTILINE),
        re.search(r"^target triple = .*$", text, re.MULTILINE),
        re.search(r'!\{i32 \d+, !"tvm_target", .*\}$', text, re.MULTILINE),
    ]
    layout, triple, described = (str(found[0]) for found in parts)
    return layout, triple, described


CODEGEN = "tvm_hybrid"
MACHINE = "tvm_hybrid.machine"


@named_pass
def annotate_codegen(mod: IRModule, target: Target, threads: int) -> IRModule:
    """RunCodegen support: compiles regions one by one, for users who assemble their own pipeline.

    `annotate_codegen` marks the functions of a partitioned module for TVM's RunCodegen pass, which
    hands them to `relax.ext.tvm_hybrid`.

    Before

        R.func_attr({"Composite": "tvm_hybrid.matmul", ...})

    After

        R.func_attr({"Codegen": "tvm_hybrid", "global_symbol": "fused_matmul", ...})

    The functions must have configurations and packed weights.
    """
    machine = json.dumps({"target": json.loads(str(target)), "threads": threads})
    updated = copy_module(mod)
    for gvar, function in mod.functions_items():
        if is_region_function(function):
            own = relax.utils.copy_with_new_vars(function)  # with its own symbolic sizes
            marked = own.without_attr(COMPOSITE).with_attr("Codegen", CODEGEN)
            named = marked.with_attr("global_symbol", str(gvar.name_hint))
            updated.update_func(gvar, named.with_attr(MACHINE, machine))
    return updated


def compile_functions(
    functions: Sequence[relax.Function], _options: Mapping[str, Any], _constants: Mapping[Any, str]
) -> list[Any]:
    """`relax.ext.tvm_hybrid`: one runtime module for every function from RunCodegen.

    Raises
    ------
    CompileError
        If a function is not one that `annotate_codegen` marked.
    """
    modules = []
    for function in functions:
        symbol = str(function.attrs["global_symbol"])
        if not is_region_function(function) or MACHINE not in function.attrs:
            raise CompileError(
                f"{symbol} is not a function of partition_for_tvm_hybrid; relax.ext.{CODEGEN} "
                "builds only those"
            )
        description = json.loads(str(function.attrs[MACHINE]))
        target, threads = Target(description["target"]), int(description["threads"])
        machine = Machine.from_target(target, threads)
        kernel = build_kernel(region_of(function), config_of(function), machine)
        with kernel_context([kernel]):
            kernel = made_for(kernel.with_attr("global_symbol", symbol), threads)
            compiled = tvm.compile(kernel, target, tir_pipeline=pipeline_for(threads))
        modules.append(compiled.mod)
    return modules


LEFT = "no template takes it; the caller's pipeline lowers it"


def note_partition(mod: IRModule, machine: Machine, decisions: DecisionLog) -> None:
    """Notes the future kernel of every call of a region function, and the remaining operators.

    Parameters
    ----------
    mod : tvm.IRModule
        The module; its region functions have configurations.
    machine : Machine
        The machine that kernels will be built for.
    decisions : list of Decision
        Decisions of earlier passes; operators that they note as not taken are not noted again.
    """
    noted = {decision.node for decision in decisions if not decision.taken}
    for _, function in mod.functions_items():
        if not is_ordinary(function):
            continue
        for binding in bindings_of(function):
            callee, name = called_region(mod, binding.value), op_name(binding.value)
            node = str(binding.var.name)
            if callee is not None:
                decisions.append(decision_of(binding, callee, binding.value.op, machine))
            elif name and name not in RESHAPES and node not in noted:
                name = name.removeprefix("relax.")
                decisions.append(Decision(node=node, op=name, taken=False, reason=LEFT))


# Kernel context: the passes of TVM that are skipped when our kernels are compiled.
#
# TVM's passes that find common subexpressions and hoist conditions take up to a quarter of the
# compile time on unrolled register tiles and long epilogues; passes that remove statements without
# effect and that rewrite divisions each take a tenth of the time of TVM's passes. LLVM does this
# work, too, and the machine code is equal without these passes. Passes for GPUs visit every
# statement and change nothing. TVM's analyzer takes long to find out that buffers of templates
# cannot shrink, and minutes if sizes are expressions; kernels of templates declare that their
# buffers are exact.


_SHRINKS_BUFFERS = "s_tir.CompactBufferAllocation"


def has_exact_buffers(function: object) -> bool:
    """Whether the buffers of a function are exact and must not be shrunk."""
    return isinstance(function, tirx.PrimFunc) and EXACT_BUFFERS in (function.attrs or {})


def kernel_context(functions: Iterable[object] = ()) -> PassContext:
    """The context in which to call `tvm.compile`; all else in the caller's context is kept.

    Parameters
    ----------
    functions : iterable
        The functions to compile, if some may be kernels with exact buffers.
    """
    exact = [_SHRINKS_BUFFERS] if any(map(has_exact_buffers, functions)) else []
    left_out = (*tvm_compat.SLOW_PASSES, *tvm_compat.GPU_PASSES)
    outer = PassContext.current()
    return PassContext(
        opt_level=outer.opt_level,
        required_pass=list(outer.required_pass),
        disabled_pass=[*outer.disabled_pass, *left_out, *exact],
        config={**outer.config, **tvm_compat.WITHOUT_CSE},
    )
