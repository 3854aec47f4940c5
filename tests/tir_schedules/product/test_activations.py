"""A block of activations is staged only if the kernel multiplies other elements than those of A."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.isa import Isa, isa_named
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tests.tir_schedules.integer_regions import matmul_region
from tests.tir_schedules.run_region import MCPU
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.product.batch_matmul import BATCH_MATMUL
from tir_schedules.product.matmul import MATMUL

F, B, U8, I8 = "float32", "bfloat16", "uint8", "int8"
VNNI, BF16, PLAIN = (isa_named(name) for name in ("avx512_vnni", "avx512_bf16", "avx512"))


def code(region: Region, isa: Isa) -> str:
    """The kernel before TVM lowers it; nothing runs, so any CPU will do."""
    machine = Machine(MCPU[isa.name], isa)
    template = template_for(region.op)
    assert template.reject(region, isa) is None
    return str(template.build(region, template.default_config(region, machine), isa).script())


def narrow(dtype: str, k: int) -> Region:
    return Region(
        op="matmul",
        inputs=(Tensor((4, k), dtype), Tensor((k, 16), B, True)),
        output=Tensor((4, 16), F),
    )


@pytest.mark.parametrize(
    ("region", "isa", "staged"),
    [
        (matmul_region((4,), 16, 16, U8), VNNI, False),
        (matmul_region((4,), 16, 16, I8), VNNI, False),  # shifted on loading
        (matmul_region((4,), 18, 16, U8), VNNI, True),  # no whole words of four bytes
        (matmul_region((4,), 18, 16, U8), PLAIN, True),
        (matmul_region((4,), 17, 16, U8), PLAIN, True),
        (matmul_region((4,), 16, 16, U8, quantized=0.1), VNNI, True),
        (narrow(B, 16), BF16, False),
        (narrow(B, 17), BF16, True),
        (narrow(F, 16), BF16, True),
    ],
    ids=lambda value: getattr(value, "key", None) or getattr(value, "name", None),
)
def test_what_is_staged(region: Region, isa: Isa, staged: bool) -> None:
    assert ('T.sblock("stage")' in code(region, isa)) == staged


def test_columns_of_a_transposed_a_are_staged() -> None:
    for axes, staged in [((0, 1, 2), False), ((0, 2, 1), True)]:
        region = Region(
            op="batch_matmul",
            inputs=(Tensor((2, 16, 16), U8), Tensor((2, 16, 16), I8)),
            output=Tensor((2, 16, 16), "int32"),
            attrs={"a_axes": axes},
        )
        assert BATCH_MATMUL.reject(region, VNNI) is None
        assert ('T.sblock("stage")' in code(region, VNNI)) == staged


def test_rows_are_summed_only_for_a_zero_point_of_b() -> None:
    """The staging pass computes the sums; without sums, A of the kernel's type is read in place."""
    assert 'T.sblock("stage")' not in code(matmul_region((4,), 16, 16, a_zero=3), VNNI)
    assert 'T.sblock("stage")' in code(matmul_region((4,), 16, 16, w_zero=3), VNNI)
    # A weight of uint8 and its zero point are shifted by 128: a zero point of 128 becomes 0.
    assert 'T.sblock("stage")' in code(matmul_region((4,), 16, 16, w=U8), VNNI)
    assert 'T.sblock("stage")' not in code(matmul_region((4,), 16, 16, w=U8, w_zero=128), VNNI)


def test_what_is_packed_behind_a_weight() -> None:
    """Four bytes per column, only if A has a zero point after it becomes unsigned."""
    packing = MATMUL.packing
    assert packing is not None
    machine = Machine(MCPU["avx512_vnni"], VNNI)
    zeros: list[tuple[str, int | str, int]] = [(U8, 0, 0), (U8, 3, 64), (U8, "input", 64)]
    for a, a_zero, extra in [*zeros, (I8, 0, 64), (I8, -128, 0)]:
        region = matmul_region((4,), 16, 16, a, I8, a_zero)
        config = MATMUL.default_config(region, machine)
        assert microkernel_named(config.kernel).kr == 4
        assert packing(region, config, VNNI, 1).shape == (16 * 16 + extra,)
        weight = np.ones((16, 16), np.int8)
        assert packing(region, config, VNNI, 1).pack(weight).shape == (16 * 16 + extra,)
