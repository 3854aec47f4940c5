"""Attention that appends to its KV caches: equal to a concatenation to the bit, and to numpy."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.machines.machine import Machine
from tests.guard import guarded
from tests.stand_ins import running
from tests.tir_schedules.attention.test_dynamic_attention import PAST, attention, f32
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    ISAS,
    expected,
    highest_native,
    machine_for,
    random_inputs,
)
from tir_schedules.attention.caches import STREAMED_BYTES, Growth, reject_growth
from tir_schedules.attention.dynamic import build_dynamic
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of

pytestmark = pytest.mark.turns

HEADS, GROUP, SIZE = 4, 2, 32
SETS = HEADS // GROUP
KEYS = PAST + LENGTH


def grown_region(keys: int = KEYS, size: int = SIZE) -> Region:
    """Grouped queries and a mask; k and v stored as [batch, heads, keys, size]."""
    mask = (BATCH, 1, LENGTH, keys)
    region = attention(HEADS, size, size, keys=keys, mask=mask, group=GROUP)
    q, _, _, bias = region.inputs
    stored = f32(BATCH, SETS, keys, size)
    strides = (SETS * keys * size, keys * size, 0, size, 1)
    attrs = {**region.attrs, "k_strides": strides, "v_strides": strides}
    return region.replace(inputs=(q, stored, stored, bias), attrs=attrs)


REGION = grown_region()
GROWTH = Growth(f32(BATCH, SETS, PAST, SIZE), f32(BATCH, SETS, LENGTH, SIZE))
BOTH = {"k": GROWTH, "v": GROWTH}


class Growing:
    """The kernel of such an attention."""

    def __init__(self, isa: str, machine: Machine) -> None:
        config = template_for("attention").default_config(REGION, machine)
        self.config = config
        function = build_dynamic(REGION, config, machine.isa, BOTH)
        named = function.with_attr("global_symbol", "kernel")
        self.kernel = running.compiled(named, isa)["kernel"]

    def check(self, batch: int, new: int, past: int, at_end: bool) -> None:
        values = {"batch": batch, "length": new, "past": past}
        known = at_sizes(REGION, values)
        q, k, v, bias = random_inputs(known)
        parts = [part for whole in (k, v) for part in np.split(whole, [past], axis=2)]
        given = [guarded(np.ascontiguousarray(each), at_end) for each in (q, *parts, bias)]
        # Vectors are stored without the cache only at multiples of their size.
        place = guarded if at_end else aligned
        made = [place(np.full(k.shape, np.nan, np.float32)) for _ in "kv"]
        out = guarded(np.full(known.output.shape, np.nan, np.float32), at_end)
        self.run(known, given, made, out, (q, k, v, bias))

    def in_room(self, batch: int, new: int, past: int, room: int, in_place: bool) -> None:
        """Caches with `room` rows for each head; each past may be the start of its result."""
        known = at_sizes(REGION, {"batch": batch, "length": new, "past": past})
        q, k, v, bias = random_inputs(known)
        given, made = [q], []
        for whole in (k, v):
            caches = [np.full((batch, SETS, room, SIZE), 7, np.float32) for _ in range(2)]
            cache, other = caches[0], caches[0] if in_place else caches[1]
            cache[:, :, :past] = whole[:, :, :past]
            given += [cache[:, :, :past], np.ascontiguousarray(whole[:, :, past:])]
            made.append(other[:, :, : past + new])
        self.run(known, [*given, bias], made, np.empty(known.output.shape, np.float32),
                 (q, k, v, bias))  # fmt: skip
        for each in made:
            assert (each.base[:, :, past + new :] == 7).all()

    def run(
        self,
        known: Region,
        given: list[np.ndarray],
        made: list[np.ndarray],
        out: np.ndarray,
        inputs: tuple[np.ndarray, ...],
    ) -> None:
        q, k, v, bias = inputs
        self.kernel(*map(tensor_of, (*given, *made, out)))
        np.testing.assert_array_equal(made[0], k)
        np.testing.assert_array_equal(made[1], v)
        # Sums of n products with probabilities; an exponential is off by a few roundings.
        bound = 4 * (k.shape[2] + SIZE + 8) * np.finfo(np.float32).eps * np.abs(v).max()
        assert np.abs(out - expected(known, [q, k, v, bias])).max() <= bound


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy aligned to 64 bytes."""
    room = np.empty(array.nbytes + 64, np.uint8)
    first = -room.ctypes.data % 64
    copy = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


PASTS = (0, 1, 7, 8, 9, 31, 32, 33, 100)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
def test_one_query_and_any_past(isa: str) -> None:
    kernel = Growing(isa, machine_for(isa))
    for number, past in enumerate(PASTS):
        kernel.check(1 + number % 3, 1, past, number % 2 == 0)


@pytest.mark.sampled
@pytest.mark.parametrize("at_end", [False, True])
def test_a_cache_that_is_streamed(at_end: bool) -> None:
    isa = highest_native(ISAS)
    kernel = Growing(isa, machine_for(isa, 2))
    assert 3 * SETS * 1201 * SIZE * 4 >= STREAMED_BYTES
    kernel.check(3, 1, 1200, at_end)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("in_place", [False, True])
def test_caches_with_room_for_more_rows(isa: str, in_place: bool) -> None:
    kernel = Growing(isa, machine_for(isa, 2))
    for batch, new, past in ((1, 1, 0), (1, 1, 33), (2, 1, 9), (3, 1, 70), (2, 4, 40)):
        kernel.in_room(batch, new, past, 80, in_place)


def test_threads_share_the_keys_of_a_cache_with_room() -> None:
    isa = highest_native(ISAS)
    kernel = Growing(isa, machine_for(isa, 8))
    for in_place in (True, False):
        kernel.in_room(1, 1, 2000, 2050, in_place)


def test_several_queries() -> None:
    isa = highest_native(ISAS)
    kernel = Growing(isa, machine_for(isa, 2))
    for batch, new, past in [(1, 5, 0), (2, 3, 11), (1, 40, 28), (2, 7, 300)]:
        kernel.check(batch, new, past, True)


def test_threads_share_the_keys_of_few_heads() -> None:
    isa = highest_native(ISAS)
    kernel = Growing(isa, machine_for(isa, 8))
    assert kernel.config.key_shares > 1
    kernel.check(1, 1, 2000, True)
    kernel.check(1, 1, 100, True)


def test_what_is_left_to_a_concatenation() -> None:
    isa = machine_for("avx2").isa
    assert reject_growth(REGION, BOTH, isa) is None
    known = at_sizes(REGION, {"batch": 1, "length": 1, "past": 5})
    assert reject_growth(known, BOTH, isa) == "many queries, or static sizes"
    half = Growth(GROWTH.past, Tensor((BATCH, SETS, LENGTH, SIZE), "bfloat16"))
    assert reject_growth(REGION, {**BOTH, "v": half}, isa) == "v is converted"
    narrow = grown_region(size=20)
    assert reject_growth(narrow, BOTH, isa) == "k is of type float32, 20 columns"
    apart = attention(HEADS, SIZE, SIZE, keys=KEYS, group=GROUP)  # [batch, keys, heads * size]
    assert reject_growth(apart, BOTH, isa) == "rows of k are not contiguous"


@pytest.mark.sampled
@pytest.mark.parametrize("isa", BF16_ISAS)
def test_products_of_bfloat16(isa: str) -> None:
    """The caches stay f32; results equal those of caches joined by another kernel."""
    rounding = {"rounded": "bfloat16"}
    parts = (
        part.replace(attrs=part.attrs | rounding) if part.op == "batch_matmul" else part
        for part in REGION.parts
    )
    rounded = REGION.replace(parts=tuple(parts))
    machine = machine_for(isa)
    assert reject_growth(rounded, BOTH, machine.isa) is None
    config = template_for("attention").default_config(rounded, machine)
    assert "_bf16_" in str(config.to_dict()["scores_kernel"])
    function = build_dynamic(rounded, config, machine.isa, BOTH)
    kernel = running.compiled(function.with_attr("global_symbol", "kernel"), isa)["kernel"]
    apart = DynamicKernel(rounded, isa, config=config)
    for batch, new, past in ((1, 1, 0), (2, 1, 33), (1, 1, 8), (2, 5, 20)):
        sizes = {"batch": batch, "length": new, "past": past}
        known = at_sizes(rounded, sizes)
        q, k, v, bias = random_inputs(known)
        joined = [part for whole in (k, v) for part in np.split(whole, [past], axis=2)]
        made = [np.full(k.shape, np.nan, np.float32) for _ in "kv"]
        out = np.empty(known.output.shape, np.float32)
        given = map(np.ascontiguousarray, (q, *joined, bias))
        kernel(*map(tensor_of, (*given, *made, out)))
        np.testing.assert_array_equal(made[0], k)
        np.testing.assert_array_equal(made[1], v)
        np.testing.assert_array_equal(out, apart.run(sizes, [q, k, v, bias], True))
