"""The contract suite: every registered microkernel runs it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
import tvm.tirx.script.builder.ir as I
from tvm.script.ir_builder import IRBuilder

from microkernels.errors import IsaError
from microkernels.isa import LADDER, isa_named
from microkernels.microkernel import (
    Microkernel,
    all_microkernels,
    kernels_for,
    microkernel_named,
    register_microkernel,
)
from microkernels.packing import pack_weight, packed_size
from microkernels.vectors import parameter, ramp, splat
from tests.guard import guarded

MCPU = {"scalar": "x86-64", "avx2": "haswell", "avx512": "skylake-avx512"}
KERNELS = [pytest.param(kernel, id=kernel.name) for kernel in all_microkernels()]
VECTOR = [  # scalar code makes no promise about registers
    pytest.param(kernel, id=kernel.name) for kernel in all_microkernels() if kernel.lanes > 1
]
RUNNABLE = [
    pytest.param(kernel, id=kernel.name, marks=pytest.mark.isa(kernel.isa_name))
    for kernel in all_microkernels()
]


def tile_function(kernel: Microkernel, rows: int, vectors: int, blocks: int, k: int):
    """C = sum over blocks of A[block] times B[block], in one tile."""
    lanes = kernel.lanes
    columns = vectors * lanes
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("tile")
        I.func_attr({"global_symbol": "tile", "tirx.noalias": True})
        a = parameter("A", (blocks, rows, k), kernel.a_dtype)
        b = parameter("B", (blocks, packed_size(k, columns, kernel)), kernel.b_dtype)
        c = parameter("C", (rows, columns), kernel.acc_dtype)
        with I.serial(1) as _, I.sblock("tile"):
            I.reads()
            I.writes()
            result = kernel.emit(
                rows,
                vectors,
                (blocks, k),
                lambda i, ks: splat(a[ks[0], i, ks[1]], lanes),
                lambda j, ks: b[ks[0], ramp((ks[1] * vectors + j) * lanes, lanes)],
            )
            for i in range(rows):
                for j in range(vectors):
                    I.buffer_store(c, result.value(i, j), [i, ramp(j * lanes, lanes)])
    return builder.get()


def compiled(kernel: Microkernel, rows: int, vectors: int, blocks: int, k: int):
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[kernel.isa_name]})
    return tvm.compile(tile_function(kernel, rows, vectors, blocks, k), target=target)


def f32_bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bound of a f32 sum of products in any order: K * eps * |A| |B| (Higham, section 3.1)."""
    terms = a.shape[0] * a.shape[2]
    magnitude = np.einsum("bik,bkj->ij", np.abs(a).astype(float), np.abs(b).astype(float))
    return (terms + 1) * np.finfo(np.float32).eps * magnitude


@pytest.mark.parametrize("kernel", KERNELS)
def test_name_says_what_it_is(kernel: Microkernel) -> None:
    assert kernel.name.startswith(kernel.isa_name)
    assert kernel.name.endswith(f"_{kernel.mr}x{kernel.nr}")
    assert kernel.nr % kernel.lanes == 0
    assert kernel in all_microkernels()
    assert microkernel_named(kernel.name) is kernel


@pytest.mark.parametrize("kernel", RUNNABLE)
@pytest.mark.parametrize("at_end", [False, True])
def test_heights_and_widths_against_numpy_between_guard_pages(
    kernel: Microkernel, at_end: bool
) -> None:
    rng = np.random.default_rng(0)
    sizes = {(rows, kernel.vectors) for rows in {1, kernel.mr // 2 or 1, kernel.mr - 1 or 1}}
    sizes |= {(kernel.mr, vectors) for vectors in {1, kernel.vectors - 1 or 1, kernel.vectors}}
    for rows, vectors in sizes:
        for blocks, k in [(1, 1), (2, 7), (3, 33)]:
            columns = vectors * kernel.lanes
            a = rng.standard_normal((blocks, rows, k)).astype(kernel.a_dtype)
            b = rng.standard_normal((blocks, k, columns)).astype(kernel.b_dtype)
            packed = np.stack([pack_weight(part, [vectors], kernel) for part in b])
            c = guarded(np.full((rows, columns), np.nan, kernel.acc_dtype), at_end)
            function = compiled(kernel, rows, vectors, blocks, k)["tile"]
            function(guarded(a, at_end), guarded(packed, at_end), c)
            expected = np.einsum("bik,bkj->ij", a.astype(float), b.astype(float))
            assert (np.abs(c - expected) <= f32_bound(a, b)).all()


@pytest.mark.parametrize("kernel", VECTOR)
def test_accumulators_stay_in_registers(kernel: Microkernel) -> None:
    """No vector register is spilled: the reduction loop never stores a vector to the stack."""
    module = compiled(kernel, kernel.mr, kernel.vectors, 1, 256)
    blocks = re.split(r"^\.LBB\w+:", module.mod.inspect_source("asm"), flags=re.MULTILINE)
    loops = [block for block in blocks if block.count("vfmadd") >= kernel.mr * kernel.vectors]
    assert loops
    register = "zmm" if kernel.lanes == 16 else "ymm"
    for loop in loops:
        body = loop[: loop.rindex("vfmadd")]
        assert len(re.findall(rf"vfmadd.*%{register}", loop)) == loop.count("vfmadd")
        assert not re.findall(rf"vmov\w+\s+%{register}\d+, -?\w*\(", body)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tiles_it_does_not_have_are_refused(kernel: Microkernel) -> None:
    for rows, vectors in [(kernel.mr + 1, 1), (1, kernel.vectors + 1), (0, 1)]:
        with pytest.raises(IsaError, match=kernel.name):
            tile_function(kernel, rows, vectors, 1, 1)


def test_names_are_unique_and_unknown_ones_are_refused() -> None:
    kernel = all_microkernels()[0]
    with pytest.raises(ValueError, match="registered twice"):
        register_microkernel(kernel)
    with pytest.raises(IsaError, match="no microkernel 'avx9_f32_1x1'"):
        microkernel_named("avx9_f32_1x1")


@pytest.mark.parametrize("isa", LADDER, ids=lambda isa: isa.name)
def test_selection_takes_the_highest_rung_that_has_a_kernel(isa) -> None:
    for a_dtype, b_dtype in {(kernel.a_dtype, kernel.b_dtype) for kernel in all_microkernels()}:
        candidates = {
            kernel.isa
            for kernel in all_microkernels()
            if (kernel.a_dtype, kernel.b_dtype) == (a_dtype, b_dtype) and isa.includes(kernel.isa)
        }
        found = {kernel.isa for kernel in kernels_for(isa, a_dtype, b_dtype)}
        assert found == {max(candidates, key=LADDER.index)}
    with pytest.raises(IsaError, match="no microkernel multiplies"):
        kernels_for(isa, "float32", "complex64")


def test_every_rung_has_a_f32_family() -> None:
    assert kernels_for(isa_named("scalar"), "float32", "float32")
