"""Keys after the last one that a mask shows are not read."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tir_schedules.attention.test_dynamic_attention import KEYS, attention
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    ISAS,
    expected,
    highest_native,
    machine_for,
    random_inputs,
)
from tir_schedules.attention.caches import hiding_mask
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for

BEST = highest_native(ISAS)


def hidden(mask: tuple[int, ...], value: float = -math.inf, group: int = 2) -> Region:
    """Attention whose scores become `value` where the mask is false."""
    region = attention(2 * group, 16, 16, KEYS, mask, group)
    mask_tensor = Tensor(mask, "bool")
    scores, *others = region.parts
    steps = (
        *scores.epilogue[:2],
        EpilogueOp("constant", (), value),
        EpilogueOp("where", (1, 3, 4)),
    )
    scores = scores.replace(operands=(mask_tensor,), epilogue=steps)
    inputs = (*region.inputs[:3], mask_tensor)
    return region.replace(inputs=inputs, parts=(scores, *others))


def check(kernel: DynamicKernel, length: int, keys: int, seen: list[int]) -> None:
    """Each sequence sees `seen` keys; later keys are NaN and must not reach the result."""
    values = {"batch": len(seen), "length": length, "keys": keys, "past": 0}
    known = at_sizes(kernel.region, values)
    arrays = random_inputs(known)
    mask = np.zeros(known.inputs[3].shape, bool)
    for number, count in enumerate(seen):
        for row in range(mask.shape[2]):
            mask[number, ..., row, : max(1, count - (mask.shape[2] - 1 - row))] = True
    mask[0, ..., 0] = False  # a left-padded sequence
    mask[0, ..., max(0, seen[0] - 1)] = True
    arrays[3] = mask
    wanted = expected(known, arrays)
    for array in arrays[1:3]:
        array[:, max(seen) :] = np.nan
    for at_end in (True, False):
        result = kernel.run(values, arrays, at_end)
        bound = 4 * (keys + 24) * np.finfo(np.float32).eps * np.nanmax(np.abs(arrays[2]))
        assert np.abs(result - wanted).max() <= bound


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mask", [(BATCH, 1, LENGTH, KEYS), (BATCH, 1, 1, KEYS)])
def test_keys_up_to_the_last_one_that_is_seen(mask: tuple[int, ...], isa: str) -> None:
    region = hidden(mask)
    kernel = DynamicKernel(region, isa)
    said = template_for(region.op).at_run_time(region, kernel.config)
    assert "keys up to the last one that the mask shows" in said
    assert ("each up to the last key that it sees" in said) == (mask[2] == LENGTH)
    for length, keys, seen in [
        (1, 40, [3, 9]),
        (1, 17, [17, 1]),
        (1, 8, [8]),
        (1, 500, [1]),
        (7, 64, [20, 7, 30]),
        (33, 100, [40]),
    ]:
        check(kernel, length, keys, seen)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_block_reads_the_keys_that_it_sees(isa: str) -> None:
    """A causal mask: values from key 48 on do not reach row blocks of the first 37 queries."""
    kernel = DynamicKernel(hidden((BATCH, 1, LENGTH, KEYS)), isa)
    values = {"batch": 2, "length": 100, "keys": 100, "past": 0}
    known = at_sizes(kernel.region, values)
    arrays = random_inputs(known)
    arrays[3] = np.broadcast_to(np.tri(100, dtype=bool), known.inputs[3].shape)
    wanted = expected(known, arrays)
    bound = 4 * (100 + 24) * np.finfo(np.float32).eps * np.abs(arrays[2]).max()
    assert np.abs(kernel.run(values, arrays) - wanted).max() <= bound
    arrays[2][:, 48:] = np.nan
    first = kernel.run(values, arrays)[:, : 48 - 11]  # a row block has at most 12 queries
    assert np.abs(first - wanted[:, : 48 - 11]).max() <= bound


def test_threads_share_those_that_are_seen() -> None:
    region = hidden((BATCH, 1, LENGTH, KEYS))
    machine = machine_for(BEST, 2).with_numbers(fork_us=0)
    config = template_for(region.op).default_config(region, machine)
    kernel = DynamicKernel(region, BEST, 2, config)
    for length, keys, seen in [(1, 3000, [2500]), (1, 3000, [20]), (9, 100, [50, 60])]:
        check(kernel, length, keys, seen)


def test_queries_that_see_nothing_are_not_numbers() -> None:
    kernel = DynamicKernel(hidden((BATCH, 1, LENGTH, KEYS)), BEST)
    values = {"batch": 1, "length": 1, "keys": 20, "past": 0}
    arrays = random_inputs(at_sizes(kernel.region, values))
    arrays[3] = np.zeros((1, 1, 1, 20), bool)
    assert np.isnan(kernel.run(values, arrays)).all()


@pytest.mark.parametrize("value", [-1e30, -3.4e38, 0.0, math.nan])
def test_what_counts_where_nothing_is_seen_is_looked_at(value: float) -> None:
    """A row with such scores counts hidden keys, so all keys must be read."""
    region = hidden((BATCH, 1, LENGTH, KEYS), value)
    assert hiding_mask(region.parts[0]) is None


def test_one_mask_for_all_keys_hides_none() -> None:
    assert hiding_mask(hidden((BATCH, 1, LENGTH, 1)).parts[0]) is None
    assert hiding_mask(hidden((BATCH, 1, LENGTH, KEYS)).parts[0]) == 0
    assert hiding_mask(attention(keys=KEYS).parts[0]) is None


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2])
def test_one_query_reads_a_window(isa: str, threads: int) -> None:
    """Keys before the vector with the first visible key are not read."""
    region, machine = hidden((BATCH, 1, LENGTH, KEYS)), machine_for(isa, threads)
    config = template_for(region.op).default_config(region, machine.with_numbers(fork_us=0))
    kernel = DynamicKernel(region, isa, threads, config)
    for length, keys, window in [(1, 3000, (2900, 2960)), (1, 40, (3, 9)), (1, 40, (39, 40)),
                                 (1, 500, (0, 1)), (5, 64, (20, 40))]:  # fmt: skip
        values = {"batch": 2, "length": length, "keys": keys, "past": 0}
        known = at_sizes(region, values)
        arrays = random_inputs(known)
        arrays[3] = np.zeros(known.inputs[3].shape, bool)
        arrays[3][..., slice(*window)] = True
        wanted = expected(known, arrays)
        for array in arrays[1:3]:
            array[:, window[1] :] = np.nan
            if length == 1:
                array[:, : window[0] // 16 * 16] = np.nan
        result = kernel.run(values, arrays)
        bound = 4 * (keys + 24) * np.finfo(np.float32).eps * np.nanmax(np.abs(arrays[2]))
        assert np.abs(result - wanted).max() <= bound


def test_sequences_with_windows_of_their_own() -> None:
    """All sequences are read from the start of the first window to the end of the last one."""
    kernel = DynamicKernel(hidden((BATCH, 1, LENGTH, KEYS)), BEST)
    values = {"batch": 2, "length": 1, "keys": 200, "past": 0}
    known = at_sizes(kernel.region, values)
    arrays = random_inputs(known)
    arrays[3] = np.zeros(known.inputs[3].shape, bool)
    arrays[3][0, ..., 150:160] = True
    arrays[3][1, ..., 40:45] = True
    wanted = expected(known, arrays)
    result = kernel.run(values, arrays)
    assert (
        np.abs(result - wanted).max()
        <= 4 * 224 * np.finfo(np.float32).eps * np.abs(arrays[2]).max()
    )
