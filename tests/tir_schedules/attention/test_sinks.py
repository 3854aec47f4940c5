"""Sinks add a term to the softmax's sum in every program of attention."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.stand_ins import running
from tests.tir_schedules.attention.test_dynamic_attention import KEYS, attention, f32
from tests.tir_schedules.attention.test_growing import BOTH, REGION
from tests.tir_schedules.attention.test_seen_keys import hidden
from tests.tir_schedules.attention_regions import Attention, case, of_kind, values
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    ISAS,
    expected,
    highest_native,
    machine_for,
    random_inputs,
    run,
)
from tir_schedules.attention.dynamic import build_dynamic
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.config import Config
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of
from tvm_hybrid.tuning.verification.chain_bounds import known_case

pytestmark = pytest.mark.turns

BEST = highest_native(ISAS)


def with_sinks(region: Region) -> Region:
    """The region with one sink score for each head."""
    _, *heads = region.numbers("batch", ())
    strides = [int(np.prod(heads[place + 1 :], dtype=int)) for place in range(len(heads))]
    attrs: dict[str, Attribute] = {**region.attrs, "sink_strides": (0, *strides, 0, 1)}
    sink = Tensor((int(np.prod(heads, dtype=int)),), "float32")
    return region.replace(inputs=(*region.inputs, sink), attrs=attrs)


def scores_of_sinks(count: int) -> np.ndarray:
    """Scores below all keys' scores, among them and above them."""
    return np.array([-9.0, 0.5, 30.0, 2.0], np.float32)[np.arange(count) % 4]


def check(
    attention: Attention, isa: str = BEST, threads: int = 1, config: Config | None = None
) -> None:
    """A static kernel's result is near the reference."""
    region = with_sinks(attention.region)
    arrays = [*values(attention), scores_of_sinks(region.inputs[-1].size)]
    near(run(region, arrays, isa, config, threads), region, arrays)


def near(result: np.ndarray, region: Region, arrays: list[np.ndarray]) -> None:
    """Sums of n products with probabilities; an exponential is off by a few roundings."""
    terms = region.parts[0].output.shape[-1] + region.parts[0].inputs[0].shape[-1]
    unit = 2.0**-8 if region.inputs[1].dtype == "bfloat16" else np.finfo(np.float32).eps
    bound = 4 * (1 if unit > 1e-3 else terms + 8) * unit * np.abs(arrays[2].astype(float)).max()
    difference = result.astype(float) - expected(region, arrays)
    assert np.abs(difference).max() <= bound
    without = {name: value for name, value in region.attrs.items() if name != "sink_strides"}
    plain = region.replace(inputs=region.inputs[:-1], attrs=without)
    assert np.abs(expected(plain, arrays[:-1]) - expected(region, arrays)).max() > 2 * bound


@pytest.mark.parametrize("isa", ISAS)
def test_bands_of_queries(isa: str) -> None:
    check(case(m=21, n=37, heads=3), isa)


@pytest.mark.parametrize("isa", BF16_ISAS)
def test_products_of_bfloat16(isa: str) -> None:
    for m in (1, 21):
        check(of_kind(case(batch=1, m=m, n=37, heads=3, causal=16), "bf16"), isa)


@pytest.mark.parametrize("mask", ["", "keys", "rows", "where"])
def test_masks(mask: str) -> None:
    """Either the register tile or the softmax multiplies by the scale."""
    check(case(m=13, n=48, mask=mask, heads=4, group=2, layout="bhsd"))
    check(case(m=2, n=48, mask=mask, heads=4, group=2, layout="bhsd"))


def test_a_constant_that_is_added_to_the_scores_counts() -> None:
    region = case(m=9, n=20).region
    scores = region.parts[0]
    last = len(scores.epilogue)
    more = (EpilogueOp("constant", value=1.5), EpilogueOp("add", (last, last + 1)))
    scores = scores.replace(epilogue=(*scores.epilogue, *more))
    region = with_sinks(region.replace(parts=(scores, *region.parts[1:])))
    arrays = [*values(case(m=9, n=20)), scores_of_sinks(2)]
    near(run(region, arrays, BEST), region, arrays)


@pytest.mark.parametrize("causal", [None, 100])
def test_blocks_of_keys(causal: int | None) -> None:
    """The softmax continues from block to block."""
    attention = case(batch=1, m=70, n=170, causal=causal)
    region = with_sinks(attention.region)
    default = template_for("attention").default_config(region, machine_for(BEST))
    check(attention, config=msgspec.structs.replace(default, key_block=64, query_block=32))


@pytest.mark.parametrize("isa", ISAS)
def test_one_query(isa: str) -> None:
    check(case(batch=1, heads=6, group=3, m=1, n=70, layout="bhsd"), isa)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_threads_share_the_keys(kind: str) -> None:
    """The sink counts once, whichever thread adds it."""
    attention = of_kind(case(batch=1, heads=4, group=2, m=1, n=300, layout="bhsd"), kind)
    region = with_sinks(attention.region)
    default = template_for("attention").default_config(region, machine_for(BEST, 2))
    fields = {"key_shares": 3, "parallel": True, "skinny": True, "packs_first": False}
    check(attention, threads=2, config=msgspec.structs.replace(default, **fields))


@pytest.mark.parametrize("isa", ISAS)
def test_any_sizes(isa: str) -> None:
    for region in (attention(heads=3), hidden((BATCH, 1, LENGTH, KEYS), group=2)):
        region = with_sinks(region)
        kernel = DynamicKernel(region, isa)
        for batch, length in ((1, 1), (2, 7), (1, 33)):
            sizes = {"batch": batch, "length": length, "keys": 19}
            known = at_sizes(region, sizes)
            arrays = [*random_inputs(known)[:-1], scores_of_sinks(known.inputs[-1].size)]
            if arrays[3].dtype == bool:
                arrays[3] = np.ones_like(arrays[3])
            near(kernel.run(sizes, arrays), known, arrays)


def test_caches_that_grow() -> None:
    region = with_sinks(REGION)
    for threads in (1, 8):
        machine = machine_for(BEST, threads)
        config = template_for("attention").default_config(region, machine)
        function = build_dynamic(region, config, machine.isa, BOTH)
        kernel = running.compiled(function.with_attr("global_symbol", "kernel"), BEST)["kernel"]
        for batch, new, past in ((1, 1, 2000), (2, 1, 33), (1, 5, 20)):
            known = at_sizes(region, {"batch": batch, "length": new, "past": past})
            q, k, v, bias, _ = random_inputs(known)
            arrays = [q, k, v, bias, scores_of_sinks(4)]
            parts = [part for whole in (k, v) for part in np.split(whole, [past], axis=2)]
            made = [np.full(k.shape, np.nan, np.float32) for _ in "kv"]
            out = np.empty(known.output.shape, np.float32)
            given = map(np.ascontiguousarray, (q, *parts, bias, arrays[-1]))
            kernel(*map(tensor_of, (*given, *made, out)))
            near(out, known, arrays)
            np.testing.assert_array_equal(made[1], v)


def test_a_sink_lies_in_its_tensor() -> None:
    region, isa = with_sinks(case(heads=4).region), machine_for(BEST).isa
    template = template_for("attention")
    assert template.reject(region, isa) is None
    short = region.replace(inputs=(*region.inputs[:-1], f32(3)))
    assert template.reject(short, isa) == "sink reaches beyond its tensor"


@pytest.mark.parametrize("m", [1, 21])
def test_verification_knows_them(m: int) -> None:
    region = with_sinks(case(m=m, n=33, heads=2, causal=32 - m).region)
    arrays, wanted = known_case(region, template_for("attention"), 0)
    result = run(region, arrays, "avx2")
    assert (np.abs(result - wanted.value) <= wanted.tolerance).all()
