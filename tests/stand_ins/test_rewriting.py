"""Intrinsics become meanings on a CPU that lacks them, and stay on others."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm.tirx.script.builder.ir as I
from tvm import IRModule, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.isa import isa_named
from microkernels.kernels.bf16 import DOT_LLVM_IR
from microkernels.vector.expressions import Expr, parameter, ramp
from tests.microkernels.isa_targets import target_of
from tests.stand_ins.building import PRESENT, lacks, stand_ins, target_here
from tests.stand_ins.llvm_ir import PREFIX
from tests.stand_ins.meanings import MEANINGS
from tests.stand_ins.rewriting import imported_text, with_meanings

ADD = "llvm.x86.avx512.vpdpbusd.512"
TARGET = target_of("avx512_vnni")


def add_products(by_stand_in: bool) -> tirx.PrimFunc:
    """c += a * b twice, the first sum within the second."""

    def call(*operands: Expr) -> Expr:
        if by_stand_in:
            return I.call_pure_extern("int32x16", PREFIX + ADD, *operands)
        return I.call_llvm_pure_intrin("int32x16", ADD, *operands)

    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"target": TARGET})
        a, b = parameter("a", (64,), "uint8"), parameter("b", (64,), "int8")
        c = parameter("c", (16,), "int32")
        factors = a[ramp(0, 64)], b[ramp(0, 64)]
        inner = call(c[ramp(0, 16)], *factors)

        def body() -> None:
            I.buffer_store(c, call(inner, *factors), [ramp(0, 16)])

        if by_stand_in:
            with llvm_functions(MEANINGS[ADD].text):
                body()
        else:
            body()
    return builder.get()


@pytest.mark.parametrize("lacking", [True, False])
def test_only_missing_intrinsics_are_replaced(lacking: bool) -> None:
    present = frozenset() if lacking else frozenset(isa_named("avx512_vnni").features)
    before, after = IRModule({"main": add_products(False)}), add_products(lacking)
    found = with_meanings(before, TARGET, present)["main"]
    tvm.ir.assert_structural_equal(found, after, map_free_vars=True)


def test_imported_functions_call_meanings_too() -> None:
    assert imported_text(DOT_LLVM_IR, frozenset(isa_named("avx512_bf16").features)) == DOT_LLVM_IR
    text = imported_text(DOT_LLVM_IR, frozenset())
    assert "@llvm.x86" not in text
    names = [name for name in MEANINGS if "bf16" in name]
    assert len(names) == 3
    for name in names:
        assert text.count(f"@{PREFIX}{name}(") == 2  # its definition and one call
    assert text.count(f"@{PREFIX}narrow(") == 4  # one definition for both users


def test_an_intrinsic_without_a_meaning_is_named() -> None:
    text = DOT_LLVM_IR.replace("dpbf16ps", "dpbf17ps")
    with pytest.raises(
        NotImplementedError, match=r"avx512bf16\.dpbf17ps\.512 has no stand-in: add"
    ):
        imported_text(text, frozenset())


def test_targets_keep_what_this_cpu_has() -> None:
    for isa in ("avx512", "avx512_vnni", "avx512_bf16", "amx"):
        here = target_here(target_of(isa))
        assert lacks(here) == []
        assert not (set(isa_named(isa).features) & PRESENT).difference(
            map(str, tvm.target.codegen.llvm_get_cpu_features(here))
        )
    assert "+amx-int8" in target_here(target_of("amx")).attrs["mattr"]


def test_stand_ins_are_used_only_within_their_context() -> None:
    def compiled(mcpu: str) -> str:
        target = {"kind": "llvm", "mcpu": mcpu}
        return str(tvm.compile(add_products(False), target=target).mod.inspect_source("asm"))

    with stand_ins():
        inside = compiled("cascadelake")
    assert "vpdpbusd" in compiled("cascadelake")
    assert ("vpdpbusd" in inside) == (lacks(TARGET) == [])
    with stand_ins():
        module = tvm.compile(add_products(False), target=TARGET)
    c = np.zeros(16, np.int32)
    module["main"](np.full(64, 255, np.uint8), np.full(64, -128, np.int8), c)
    assert (c == 2 * 4 * 255 * -128).all()
