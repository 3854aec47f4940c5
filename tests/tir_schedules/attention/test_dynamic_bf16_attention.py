"""Attention in bfloat16 with any number of sequences, queries and keys, within derived bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tir_schedules.attention_reference import assert_near, expected
from tests.tir_schedules.attention_regions import Attention, values
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel
from tests.tir_schedules.run_region import BF16_ISAS, highest_native, machine_for
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.template import template_for

pytestmark = pytest.mark.turns

KEYS = SymbolicSize.of("keys")
SIZES = [(1, 1, 1), (1, 2, 7), (2, 7, 16), (1, 20, 33), (2, 3, 50), (1, 33, 131)]
ISA = highest_native(BF16_ISAS)


def dynamic_region(**fields: object) -> Attention:
    """The attention with dynamic batch, queries and keys."""
    return replace(Attention(kind="bf16"), batch=BATCH, m=LENGTH, n=KEYS, **fields)  # type: ignore[arg-type]


def check(attention: Attention, isa: str = ISA, threads: int = 1) -> DynamicKernel:
    """Checks the kernel for all sizes and returns it."""
    kernel = DynamicKernel(attention.region, isa, threads)
    for batch, length, keys in SIZES:
        known = replace(attention, batch=batch, m=length, n=keys)
        arrays = values(known)
        sizes = {"batch": batch, "length": length, "keys": keys}
        for at_end in (True, False):
            assert_near(known, kernel.run(sizes, arrays, at_end), expected(known, arrays))
    return kernel


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["bf16", "rounded"])
@pytest.mark.parametrize("isa", BF16_ISAS)
def test_on_every_instruction_set(isa: str, kind: str) -> None:
    config = check(dynamic_region(kind=kind, mask="keys"), isa).config.to_dict()
    # ISAs without bfloat16 products widen operands as they pack them.
    widened = kind == "bf16" and isa != "avx512_bf16"
    for name in ("scores_kernel", "product_kernel"):
        assert ("_f32_" if widened else "_bf16_") in str(config[name])


def test_tiles_are_left_to_vectors() -> None:
    config = template_for("attention").default_config(dynamic_region().region, machine_for("amx"))
    assert config.to_dict()["scores_kernel"].startswith("avx512_bf16")  # type: ignore[union-attr]


@pytest.mark.sampled
@pytest.mark.parametrize("mask", ["", "rows", "square", "heads"])
@pytest.mark.parametrize("kind", ["bf16", "rounded"])
def test_masks(kind: str, mask: str) -> None:
    check(dynamic_region(kind=kind, mask=mask))


@pytest.mark.sampled
@pytest.mark.parametrize(("d", "e"), [(64, 64), (40, 24), (6, 5), (16, 80)])
@pytest.mark.parametrize("kind", ["bf16", "rounded"])
def test_heads_of_any_even_size(kind: str, d: int, e: int) -> None:
    check(dynamic_region(kind=kind, d=d, e=e))


def test_results_in_bfloat16() -> None:
    check(dynamic_region(output="bfloat16", layouts=("packed", "packed", "packed", "bshd")))


def test_heads_that_share_k_and_v() -> None:
    check(dynamic_region(heads=6, group=3, layouts=("bhsd", "bhsd", "bhsd", "bshd")), threads=2)


def test_a_causal_mask() -> None:
    check(dynamic_region(causal=0))


def test_odd_heads_are_refused() -> None:
    isa = machine_for("avx512_bf16").isa
    reason = template_for("attention").reject_dynamic(dynamic_region(d=33).region, isa)
    assert "no multiple of 2" in str(reason)
    whole = dynamic_region().region
    strange = whole.replace(inputs=(Tensor(whole.inputs[0].shape, "float16"), *whole.inputs[1:]))
    assert "types other than" in str(template_for("attention").reject_dynamic(strange, isa))
