"""Kernels as assembly text: what can move to another module, and what a key contains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext
from tvm.script import tirx as T
from tvm.target import Target

from microkernels.base.tvm_compat.relax import SYMBOL_PREFIX
from relay_passes.lower.codegen import (
    PLACEHOLDER,
    KernelCode,
    assembled,
    built,
    code_of,
    has_texts,
    kernel_context,
    kernel_key,
)
from relay_passes.lower.kernel_pipelines import made_for, pipeline_for
from tvm_hybrid.targets.resolve import resolve_target

ROOT = Path(__file__).resolve().parents[3]
SIZE = 64
WRITTEN = f"""\
\t.file\t"TVMMod"
\t.text
\t.globl\t{SYMBOL_PREFIX}{PLACEHOLDER}
\t.p2align\t4
\t.type\t{SYMBOL_PREFIX}{PLACEHOLDER},@function
{SYMBOL_PREFIX}{PLACEHOLDER}:
.Lfunc_begin0:
\t.loc\t1 0 0
\t.cfi_startproc
.Ltmp0:
\tleaq\t.L.str(%rip), %rdi
\tjne\t.LBB0_2
\tcallq\t__truncsfhf2
.LBB0_2:
\tmovq\t__TVMBackendAllocWorkspace@GOTPCREL(%rip), %rax
\tjmp\t__tvm_set_raised_6
\t.size\t{SYMBOL_PREFIX}{PLACEHOLDER}, .Lfunc_end0-{SYMBOL_PREFIX}{PLACEHOLDER}
\t.cfi_endproc

\t.p2align\t4
\t.type\t__tvm_set_raised_6,@function
__tvm_set_raised_6:
\t.cfi_startproc
\tretq
\t.cfi_endproc

\t.section\t.text.tvm.fp16.conv,"ax",@progbits
\t.weak\t__truncsfhf2
\t.p2align\t4
\t.type\t__truncsfhf2,@function
__truncsfhf2:
\t.cfi_startproc
\tretq
\t.cfi_endproc

\t.weak\t__extendhfsf2
\t.p2align\t4
\t.type\t__extendhfsf2,@function
__extendhfsf2:
\t.cfi_startproc
\tretq
\t.cfi_endproc

\t.type\t.L.str,@object
\t.section\t.rodata,"a",@progbits
.L.str:
\t.asciz\t"{PLACEHOLDER}: .Lnot a label, __tvm_set_raised_6"
\t.size\t.L.str, 5

\t.hidden\tasked
\t.type\tasked,@object
\t.bss
\t.weak\tasked
asked:
\t.long\t0
\t.size\tasked, 4

\t.type\t__TVMBackendAllocWorkspace,@object
\t.weak\t__TVMBackendAllocWorkspace
\t.p2align\t3, 0x0
__TVMBackendAllocWorkspace:
\t.quad\t0
\t.size\t__TVMBackendAllocWorkspace, 8

\t.section\t.debug_str,"MS",@progbits,1
.Linfo_string0:
\t.asciz\t"TVM"
\t.section\t".note.GNU-stack","",@progbits
"""
MOVED = f"""\
.text
.p2align\t4
.type\t{PLACEHOLDER}.entry,@function
{PLACEHOLDER}.entry:
.L{PLACEHOLDER}.func_begin0:
.cfi_startproc
leaq\t.L{PLACEHOLDER}..str(%rip), %rdi
jne\t.L{PLACEHOLDER}.BB0_2
callq\t{PLACEHOLDER}.__truncsfhf2
.L{PLACEHOLDER}.BB0_2:
movq\t__TVMBackendAllocWorkspace@GOTPCREL(%rip), %rax
jmp\t{PLACEHOLDER}.__tvm_set_raised_6
.size\t{PLACEHOLDER}.entry, .L{PLACEHOLDER}.func_end0-{PLACEHOLDER}.entry
.cfi_endproc
.p2align\t4
.type\t{PLACEHOLDER}.__tvm_set_raised_6,@function
{PLACEHOLDER}.__tvm_set_raised_6:
.cfi_startproc
retq
.cfi_endproc
.section\t.text.tvm.fp16.conv,"ax",@progbits
.p2align\t4
.type\t{PLACEHOLDER}.__truncsfhf2,@function
{PLACEHOLDER}.__truncsfhf2:
.cfi_startproc
retq
.cfi_endproc
.type\t.L{PLACEHOLDER}..str,@object
.section\t.rodata,"a",@progbits
.L{PLACEHOLDER}..str:
.asciz\t"{PLACEHOLDER}: .Lnot a label, __tvm_set_raised_6"
.size\t.L{PLACEHOLDER}..str, 5
.type\t{PLACEHOLDER}.asked,@object
.bss
{PLACEHOLDER}.asked:
.long\t0
.size\t{PLACEHOLDER}.asked, 4
"""


def scaled(factor: float, name: str, threads: int = 1) -> tirx.PrimFunc:
    """y = x * factor in parallel, with checks of arguments and an allocated buffer."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((SIZE, SIZE), "float32"), y: T.Buffer((SIZE, SIZE), "float32")):
        for i in T.parallel(SIZE):
            with T.sblock("row"):
                v = T.axis.spatial(SIZE, i)
                row = T.sblock_alloc_buffer((SIZE * 64,), "float32")
                for j in range(SIZE):
                    row[j * 64] = x[v, j] * T.float32(factor)
                for j in range(SIZE):
                    y[v, j] = row[j * 64]

    return made_for(kernel.with_attr("global_symbol", name), threads)


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target(None, None)


def test_a_text_is_free_of_what_only_one_module_can_have() -> None:
    assert code_of(WRITTEN) == KernelCode(MOVED, ("__TVMBackendAllocWorkspace",))


@pytest.mark.parametrize(
    "line",
    [
        '"odd name":',
        "\t.globl\tother",
        "\t.weak\tvalue",
        '\t.section\t.init_array,"aw",@init_array',
    ],
)
def test_what_cannot_be_moved_is_refused(line: str) -> None:
    assert code_of(WRITTEN.replace("\t.type\t.L.str", f"{line}\n\t.type\t.L.str")) is None
    assert code_of(WRITTEN.replace(PLACEHOLDER, "another")) is None


def test_kernels_of_one_module_run(target: Target) -> None:
    """Both have a function `__tvm_set_raised_6` and strings with the same labels."""
    pipeline = pipeline_for(2)
    kernels = {"first": scaled(2, "first", 2), "second": scaled(3, "second", 2)}
    texts = {
        name: code_of(built(kernel, target, pipeline).inspect_source("asm"))
        for name, kernel in kernels.items()
    }
    codes = {name: code for name, code in texts.items() if code is not None}
    assert list(codes) == list(texts)
    assert "__TVMBackendParallelLaunch" in codes["first"].pointers
    module = assembled(codes, target)
    assert module.kind == "llvm"
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    for name, factor in (("first", 2), ("second", 3)):
        y = tvm.runtime.tensor(np.zeros_like(x))
        module[name](tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), x * np.float32(factor))
        with pytest.raises(Exception, match=rf"{name}\(x: Tensor"):
            module[name](tvm.runtime.tensor(x[:, 1:].copy()), y)
    assert "second.entry" in module.inspect_source("asm")


def test_a_key_says_all_but_the_name(target: Target) -> None:
    context, pipeline = kernel_context(), pipeline_for(1)
    first = kernel_key(scaled(2, "first"), target, pipeline, context)
    assert first == kernel_key(scaled(2, "second"), target, pipeline, context)
    with PassContext(config={"tirx.disable_vectorize": True}):
        plain = kernel_context()
    others = [
        (scaled(np.nextafter(np.float32(2), np.float32(3)), "first"), target, pipeline, context),
        (scaled(2, "first", 2), target, pipeline, context),
        (scaled(2, "first"), resolve_target("tvm_hybrid/haswell", None), pipeline, context),
        (scaled(2, "first"), target, pipeline_for(2), context),
        (scaled(2, "first"), target, pipeline, plain),
    ]
    assert len({first, *(kernel_key(*each) for each in others)}) == 1 + len(others)


def test_a_kernel_that_calls_another_has_no_key(target: Target) -> None:
    call = tirx.Evaluate(tvm.ir.Call(ir.GlobalVar("other"), []))
    calling = tirx.PrimFunc([], call).with_attr("global_symbol", "calling")
    assert kernel_key(calling, target, pipeline_for(1), kernel_context()) is None
    odd = scaled(2, "an odd name")
    assert kernel_key(odd, target, pipeline_for(1), kernel_context()) is None


_KEY = """
from tests.relay_passes.lower.test_kernel_text import *
target = resolve_target(None, None)
print(kernel_key(scaled(2, "here"), target, pipeline_for(1), kernel_context()))
"""


def test_another_process_has_the_same_key(target: Target) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", _KEY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    own = kernel_key(scaled(2, "there"), target, pipeline_for(1), kernel_context())
    assert done.stdout.strip() == own


def test_other_architectures_have_no_texts(target: Target) -> None:
    assert has_texts(target)
    arm = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic"}
    if tvm.get_global_func("codegen.llvm_target_enabled")('{"kind":"llvm","mtriple":"aarch64"}'):
        assert not has_texts(Target(arm))
