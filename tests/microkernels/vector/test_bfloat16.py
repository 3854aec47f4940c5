"""Conversion to and from bfloat16 in vector code."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm.tirx.script.builder.ir as I
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS, llvm_functions
from microkernels.isa import isa_named
from microkernels.kernels.bf16 import DOT_LLVM_IR
from microkernels.vector.bfloat16 import narrow, narrow_by_instruction, widen
from microkernels.vector.expressions import parameter, ramp
from tests.microkernels.isa_targets import MCPU
from tests.stand_ins import running

ISAS = [pytest.param(isa, marks=pytest.mark.isa(isa)) for isa in ("scalar", "avx2", "avx512")]
SIZE = 4096


def conversion(isa: str, convert, source: str, result: str):
    """The runnable y = convert(x) on vectors of SIZE elements, and its assembly."""
    lanes = isa_named(isa).f32_lanes
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"global_symbol": "main", **NO_ALIAS})
        x, y = parameter("x", (SIZE,), source), parameter("y", (SIZE,), result)
        with I.serial(SIZE // lanes) as i:
            index = ramp(i * lanes, lanes)
            I.buffer_store(y, convert(x[index]), [index])
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[isa]})
    return tvm.compile(builder.get(), target=target)


def run(module, x: np.ndarray, result: str) -> np.ndarray:
    parts = []
    for chunk in x.reshape(-1, SIZE):
        y = np.zeros(SIZE, result)
        module["main"](np.ascontiguousarray(chunk), y)
        parts.append(y)
    return np.concatenate(parts)


def everything_of_interest() -> np.ndarray:
    """Every bfloat16 as a float32, and each midpoint with the numbers just below and above it."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, None] + lower).reshape(-1).view(np.float32)


def nearest_even(x: np.ndarray) -> np.ndarray:
    """bfloat16 bits of finite float32, by the distances to both neighbours."""
    magnitude = np.abs(x)
    below = magnitude.view(np.uint32) >> 16
    above = below + 1
    # The number after the largest finite one stands for 2**128, as IEEE 754 rounds.
    low, high = (
        np.where(bits == 0x7F80, 2.0**128, (bits << 16).view(np.float32).astype(np.float64))
        for bits in (below, above)
    )
    to_low, to_high = magnitude - low, high - magnitude
    up = (to_high < to_low) | ((to_high == to_low) & (below % 2 == 1))
    sign = np.signbit(x).astype(np.uint32) << 15
    return (np.where(up, above, below) | sign).astype(np.uint16)


@pytest.mark.parametrize("isa", ISAS)
def test_narrowing_rounds_to_nearest_even(isa: str) -> None:
    x = everything_of_interest()
    bits = run(conversion(isa, narrow, "float32", "uint16"), x, "uint16")
    finite = np.isfinite(x)
    np.testing.assert_array_equal(bits[finite], nearest_even(x[finite]))
    infinite = np.isinf(x)
    np.testing.assert_array_equal(bits[infinite], x[infinite].view(np.uint32) >> 16)
    nan = bits[np.isnan(x)]
    assert nan.size and ((nan & 0x7F80) == 0x7F80).all() and (nan & 0x7F).all()


@pytest.mark.isa("avx512_bf16")
@pytest.mark.parametrize("lanes", [16, 32])
def test_instructions_keep_the_order_of_lanes(lanes: int) -> None:
    """The instruction narrows two vectors, of which it takes the upper one first."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"global_symbol": "main", **NO_ALIAS})
        x, y = parameter("x", (64,), "float32"), parameter("y", (64,), "uint16")
        with llvm_functions(DOT_LLVM_IR), I.serial(64 // lanes) as i:
            index = ramp(i * lanes, lanes)
            I.buffer_store(y, narrow_by_instruction(x[index]), [index])
    x = np.arange(1, 65, dtype=np.float32)
    y = np.zeros(64, np.uint16)
    running.compiled(builder.get(), "avx512_bf16")["main"](x, y)
    np.testing.assert_array_equal(y, nearest_even(x))


@pytest.mark.parametrize("isa", ISAS)
def test_widening_is_exact_and_narrows_back(isa: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = run(conversion(isa, widen, "uint16", "float32"), bits, "float32")
    np.testing.assert_array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)
    back = run(conversion(isa, narrow, "float32", "uint16"), wide, "uint16")
    numbers = ~np.isnan(wide)
    np.testing.assert_array_equal(back[numbers], bits[numbers])


@pytest.mark.parametrize(("isa", "register"), [("avx2", "%ymm"), ("avx512", "%zmm")])
def test_narrowing_is_vector_code(isa: str, register: str) -> None:
    assembly = conversion(isa, narrow, "float32", "uint16").mod.inspect_source("asm")
    body = assembly[assembly.index("main_compute_:") :].partition(".size")[0]
    assert register in body
    assert "call" not in body
