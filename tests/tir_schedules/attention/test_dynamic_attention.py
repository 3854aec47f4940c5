"""Attention with any number of sequences, queries and keys: one kernel, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    ISAS,
    expected,
    highest_native,
    machine_for,
    random_inputs,
)
from tir_schedules.attention.config import kernels_of
from tir_schedules.core.blocking import balanced, tail_heights
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.template import template_for

pytestmark = pytest.mark.turns

KEYS, PAST = SymbolicSize.of("keys"), SymbolicSize.of("past")
SIZES = [(1, 1), (1, 2), (1, 3), (1, 5), (2, 7), (1, 9), (1, 16), (1, 33), (2, 50)]


def f32(*shape: int) -> Tensor:
    return Tensor(shape, "float32")


def attention(
    heads: int = 3,
    d: int = 32,
    e: int = 32,
    keys: int = LENGTH,
    mask: tuple[int, ...] | None = None,
    group: int = 1,
    steps: tuple[EpilogueOp, ...] = (),
) -> Region:
    """q, k and v stored as [batch, length, heads * size]; `group` heads of q share k and v."""
    operands = () if mask is None else (f32(*mask),)
    first = 1 + len(operands)
    epilogue = [EpilogueOp("constant", (), d**-0.5), EpilogueOp("multiply", (0, first))]
    if operands:
        epilogue.append(EpilogueOp("add", (first + 1, 1)))
    scores = Region(
        op="batch_matmul",
        inputs=(f32(BATCH, heads, LENGTH, d), f32(BATCH, heads, d, keys)),
        operands=operands,
        output=f32(BATCH, heads, LENGTH, keys),
        epilogue=(*epilogue, *steps),
    )
    softmax = Region(op="softmax", inputs=(scores.output,), output=scores.output, attrs={"axis": 3})
    product = Region(
        op="batch_matmul",
        inputs=(scores.output, f32(BATCH, heads, keys, e)),
        output=f32(BATCH, heads, LENGTH, e),
    )
    sets = heads // group
    factors = (BATCH, sets, group) if group > 1 else (BATCH, heads)

    def strides(rows: int, columns: int, count: int, shared: bool) -> tuple[int, ...]:
        inner = ((columns * group, columns) if not shared else (columns, 0)) if group > 1 else None
        by_head = inner if inner is not None else (columns,)
        return (rows * count * columns, *by_head, count * columns, 1)

    return Region(
        op="attention",
        inputs=(
            f32(BATCH, LENGTH, heads * d),
            f32(BATCH, keys, sets * d),
            f32(BATCH, keys, sets * e),
            *operands,
        ),
        output=f32(BATCH, LENGTH, heads * e),
        attrs={
            "batch": factors,
            "q_strides": strides(LENGTH, d, heads, False),
            "k_strides": strides(keys, d, sets, True),
            "v_strides": strides(keys, e, sets, True),
            "out_strides": strides(LENGTH, e, heads, False),
        },
        parts=(scores, softmax, product),
    )


def check(region: Region, kernel: DynamicKernel, batch: int, length: int, keys: int = 0) -> None:
    values = {"batch": batch, "length": length, "keys": keys, "past": keys}
    known = at_sizes(region, values)
    arrays = random_inputs(known)
    for at_end in (True, False):
        result = kernel.run(values, arrays, at_end)
        wanted = expected(known, arrays)
        # Sums of n products with probabilities; an exponential is off by a few roundings.
        many = known.parts[0].output.shape[-1] + known.parts[0].inputs[0].shape[-1]
        bound = 4 * (many + 8) * np.finfo(np.float32).eps * np.abs(arrays[2]).max()
        assert np.abs(result - wanted).max() <= bound


@pytest.mark.parametrize("isa", ISAS)
def test_any_length(isa: str) -> None:
    region = attention(mask=(BATCH, 1, 1, LENGTH))
    kernel = DynamicKernel(region, isa)
    for sizes in SIZES:
        check(region, kernel, *sizes)


def test_there_is_code_for_bands_of_some_heights() -> None:
    """Blocks of queries have code for some heights; one query of many keys has its own code."""
    machine = machine_for("avx512")
    for keys, single in ((KEYS, False), (LENGTH, True)):
        region = attention(keys=keys)
        template = template_for(region.op)
        config = template.default_config(region, machine)
        height = min(kernel.mr for kernel in kernels_of(config))
        text = template.build(region, config, machine.isa).script()
        assert ('T.sblock("few")' in text) == (not single)
        panels = len(balanced(32 // machine.isa.f32_lanes, config.product_vectors))
        heights = tail_heights(height, config.score_vectors, 1 if single else 2).heights
        assert text[text.index('T.sblock("piece")') :].count('"product"') == len(heights) * panels
        assert len(heights) < height


@pytest.mark.sampled
@pytest.mark.parametrize(("d", "e"), [(64, 64), (40, 24), (7, 5), (16, 80)])
def test_heads_of_any_size(d: int, e: int) -> None:
    region = attention(2, d, e)
    kernel = DynamicKernel(region, highest_native(ISAS))
    for sizes in SIZES:
        check(region, kernel, *sizes)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "mask", [None, (LENGTH, KEYS), (BATCH, 1, LENGTH, KEYS), (BATCH, 3, LENGTH, KEYS), (KEYS,)]
)
def test_masks_and_another_number_of_keys(mask: tuple[int, ...] | None) -> None:
    region = attention(keys=KEYS, mask=mask)
    kernel = DynamicKernel(region, highest_native(ISAS))
    for length, keys in [(1, 1), (1, 17), (5, 3), (20, 48), (33, 129)]:
        check(region, kernel, 2, length, keys)


def test_keys_of_a_past_and_of_the_queries() -> None:
    mask = (BATCH, 1, LENGTH, PAST + LENGTH)
    region = attention(6, 16, 16, keys=PAST + LENGTH, mask=mask, group=3)
    kernel = DynamicKernel(region, highest_native(ISAS))
    for length, past in [(1, 0), (7, 0), (1, 1), (1, 16), (1, 40), (5, 11), (20, 28)]:
        check(region, kernel, 2, length, past)


def test_another_epilogue_of_the_scores() -> None:
    region = attention(steps=(EpilogueOp("tanh", (2,)),))
    kernel = DynamicKernel(region, highest_native(ISAS))
    for sizes in SIZES:
        check(region, kernel, *sizes)


def test_a_causal_mask() -> None:
    region = attention()
    region = region.replace(attrs={**region.attrs, "causal": 0})
    kernel = DynamicKernel(region, highest_native(ISAS))
    for sizes in SIZES:
        check(region, kernel, *sizes)


def test_heads_that_share_k_and_v() -> None:
    region = attention(6, 16, 16, group=3)
    kernel = DynamicKernel(region, highest_native(ISAS))
    for sizes in SIZES:
        check(region, kernel, *sizes)


@pytest.mark.parametrize("threads", [2, 7])
def test_on_threads(threads: int) -> None:
    region = attention(mask=(BATCH, 1, 1, LENGTH))
    kernel = DynamicKernel(region, highest_native(ISAS), threads)
    assert kernel.config.to_dict()["parallel"]
    assert kernel.config.to_dict()["row_shares"] == -(-threads // 3)
    for sizes in SIZES:
        check(region, kernel, *sizes)


def test_nothing() -> None:
    region = attention()
    kernel = DynamicKernel(region, highest_native(ISAS))
    for batch, length in [(0, 5), (2, 0)]:
        values = {"batch": batch, "length": length}
        result = kernel.run(values, random_inputs(at_sizes(region, values)))
        assert result.shape == (batch, length, 96)


def test_other_types_than_the_parts_have_are_refused() -> None:
    region = attention()
    stored = tuple(Tensor(t.shape, "bfloat16") for t in region.inputs)
    reason = template_for("attention").reject_dynamic(
        region.replace(inputs=stored), machine_for("avx2").isa
    )
    assert "types other than floats" in str(reason)
