"""Deliberate errors in an ISA's code are found on every CPU, directly or by stand-ins.

Each test breaks a function that emits code; without the break its check passes.
"""

from __future__ import annotations

import signal

import numpy as np
import pytest
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from tests.microkernels import test_microkernel_contract as contract
from tests.microkernels.operands import random_operand
from tests.tir_schedules.epilogue import test_packed_bytes as packing
from tests.tir_schedules.run_region import dtype_named, expected, run
from tests.tvm_hybrid.small_models import run_python
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue import packed_bytes
from tir_schedules.epilogue.epilogue import Columns

TYPES = {
    "avx2_vnni": ("uint8", "int8", "int32"),
    "avx512": ("float32", "float32", "float32"),
    "avx512_vnni": ("uint8", "int8", "int32"),
    "avx512_bf16": ("bfloat16", "bfloat16", "float32"),
}


def wrong_columns(isa: str) -> list[int]:
    """Wrong columns of an exact product plus an operand, whose columns end within a vector."""
    a, w, result = TYPES[isa]
    region = Region(
        op="matmul",
        inputs=(Tensor((2, 12), a), Tensor((12, 21), w, True)),
        output=Tensor((2, 21), result),
        operands=(Tensor((2, 21), result),),
        epilogue=(EpilogueOp("add", (0, 1)),),
    )
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(1, 4, tensor.shape).astype(dtype_named(tensor.dtype))
        for tensor in (*region.inputs, *region.operands)
    ]
    wrong = run(region, arrays, isa) != expected(region, arrays)
    return np.flatnonzero(wrong.any(axis=0)).tolist()


def mask_of(lanes: int) -> property:
    """`Columns.mask` with this number of lanes more than exist."""

    def mask(columns: Columns) -> tirx.Expr | None:
        if columns.valid == columns.lanes:
            return None
        return RIGHT(Columns(columns.start, columns.lanes, columns.valid + lanes))

    return property(mask)


assert Columns.mask.fget is not None
RIGHT = Columns.mask.fget


@pytest.mark.parametrize("isa", TYPES)
def test_a_mask_that_is_too_short(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_columns(isa) == []
    monkeypatch.setattr(Columns, "mask", mask_of(-1))
    assert wrong_columns(isa) == [20]


def test_a_mask_that_is_too_long() -> None:
    """The mask writes beyond the last row, where no page is mapped."""
    code = (
        "from tests.stand_ins import test_bites as bites;"
        "print(bites.wrong_columns('avx512'), flush=True);"
        "bites.Columns.mask = bites.mask_of(1); bites.wrong_columns('avx512')"
    )
    done = run_python(code)
    assert (done.stdout, done.returncode) == ("[]\n", -signal.SIGSEGV), done.stderr


def test_a_wrong_order_of_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    region = packing.quantized(2, 64, "uint8", 3, operand=False)
    arrays = packing.inputs(region)
    wanted = packing.expected(region, arrays)

    def found() -> np.ndarray:
        return run(region, arrays, "avx512")

    np.testing.assert_array_equal(found(), wanted)
    order = list(packed_bytes._ORDER)
    order[0], order[1] = order[1], order[0]
    monkeypatch.setattr(packed_bytes, "_ORDER", order)
    assert not np.array_equal(found(), wanted)


@pytest.mark.parametrize(
    "name", ["avx512_f32_6x64", "avx512_vnni_u8s8s32_6x64", "avx512_bf16_bf16_6x64"]
)
def test_a_weight_in_another_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract notices a packing that swaps two groups of K."""
    kernel = microkernel_named(name)
    rng = np.random.default_rng(0)
    a = random_operand(rng, (1, kernel.mr, 2 * kernel.kr), kernel.a_dtype)
    b = random_operand(rng, (1, 2 * kernel.kr, kernel.nr), kernel.b_dtype)
    contract.check(kernel, kernel.vectors, a, b)
    right = contract.pack_weight

    def exchanged(weight: np.ndarray, vectors: int, kernel: Microkernel) -> np.ndarray:
        return right(np.roll(weight, kernel.kr, axis=0), vectors, kernel)

    monkeypatch.setattr(contract, "pack_weight", exchanged)
    with pytest.raises(AssertionError):
        contract.check(kernel, kernel.vectors, a, b)
