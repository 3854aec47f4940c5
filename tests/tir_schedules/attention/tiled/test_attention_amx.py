"""Attention on AMX tiles: types, tails, masks, blocks of keys, and executed tile instructions."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from microkernels.amx.instructions import InstructionCounts, full_then_tail, product_counts
from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from microkernels.registry import microkernel_named
from tests.amx_emulator import emulator
from tests.examples import examples
from tests.tir_schedules.attention.test_attention_property import attentions
from tests.tir_schedules.attention_checks import check, kernel_of, result_of
from tests.tir_schedules.attention_reference import assert_near, expected
from tests.tir_schedules.attention_regions import Attention, case, of_kind, values
from tests.tir_schedules.run_region import machine_for
from tir_schedules.attention.attention import ATTENTION
from tir_schedules.attention.config import AttentionConfig
from tir_schedules.attention.problem import row_shares
from tir_schedules.core.blocking import balanced, cut_in_units

pytestmark = [pytest.mark.isa("amx"), pytest.mark.turns]

LAYOUTS = {"32x32": "2x2", "16x64": "1x4"}


def names_of(attention: Attention, block: str) -> tuple[str, str]:
    """The tile kernels of both products, by the signs of their operands.

    int8 probabilities with zero point -128 are multiplied as uint8 without a zero point.
    """
    if attention.kind != "int8":
        return (f"amx_bf16_{block}",) * 2
    q, k, p, v = (name[0].replace("i", "s") for name in attention.types)
    if (p, attention.zeros[2]) == ("s", -128):
        p = "u"
    return f"amx_{q}8{k}8s32_{block}", f"amx_{p}8{v}8s32_{block}"


def with_kernels(
    attention: Attention, scores: str, product: str, threads: int = 1, **fields: Any
) -> AttentionConfig:
    """The default configuration with other kernels, in their largest blocks."""
    config = ATTENTION.default_config(attention.region, machine_for("amx", threads))
    assert isinstance(config, AttentionConfig)
    kernels = microkernel_named(scores), microkernel_named(product)
    blocks = {
        "scores_kernel": scores,
        "product_kernel": product,
        "band": min(attention.m, max(kernel.mr for kernel in kernels)),
        "score_vectors": min(kernels[0].vectors, math.ceil(attention.n / 16)),
        "product_vectors": min(kernels[1].vectors, math.ceil(attention.columns / 16)),
        "skinny": False,
    }
    return msgspec.structs.replace(config, **{**blocks, **fields})


def on_tiles(
    attention: Attention, block: str = "32x32", threads: int = 1, **fields: Any
) -> AttentionConfig:
    """A configuration with both products on tiles."""
    return with_kernels(attention, *names_of(attention, block), threads, **fields)


def on_vectors(attention: Attention) -> AttentionConfig:
    """A configuration with both products on the vector kernels of this machine."""
    types = "vnni_u8s8s32" if attention.kind == "int8" else "bf16_bf16"
    return with_kernels(attention, *(f"avx512_{types}_8x48",) * 2)


def model(attention: Attention, config: AttentionConfig) -> dict[str, int]:
    """The tile instructions of an attention whose queries see all keys, by the product model.

    For integers, zero points make accumulators start with a value: here all do, or none.
    """
    names = config.scores_kernel, config.product_kernel
    block = names[0].split("_")[-1]
    rows = full_then_tail(attention.m, microkernel_named(names[0]).mr)
    item = 1 if attention.kind == "int8" else 2
    total = Counter[str]()
    for name, k, n, vectors in (
        (names[0], attention.d, attention.n, config.score_vectors),
        (names[1], attention.n, attention.columns, config.product_vectors),
    ):
        groups = balanced(math.ceil(n / 16), vectors)
        panels = [group.size for group in groups for _ in range(group.count)]
        pieces = [math.ceil(k * item / 64)]
        started = attention.kind == "int8" and any(attention.zeros)
        counts = product_counts(
            LAYOUTS[block], rows, panels, pieces, started=started, configure=0, release=0
        )
        dot = "tdpbf16ps" if item == 2 else f"tdpb{name[4]}{name[6]}d"
        total += Counter(counts.named(dot))
    heights = len(set(rows))
    total += Counter(InstructionCounts(ldtilecfg=heights, tilerelease=1).named(""))
    return {name: count * attention.batch * attention.heads for name, count in total.items()}


def counted() -> dict[str, int] | None:
    """Instructions executed since the test began or since `emulator.reset`."""
    counts = emulator.counts()
    return None if counts is None else {name: count for name, count in counts.items() if count}


FLOATS = [
    (case(batch=1, heads=2, m=70, n=77, d=80, mask="keys"), "bf16", "32x32"),
    (case(batch=1, heads=1, m=33, n=100, d=32, e=72, layout="bhsd"), "rounded", "16x64"),
    (case(batch=1, heads=1, m=64, n=64, d=64), "bf16", "32x32"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(FLOATS)))
def test_floats_and_instructions(number: int) -> None:
    """Tails of rows, keys and columns; two runs execute the instructions of the model."""
    attention, kind, block = FLOATS[number]
    attention = of_kind(attention, kind)
    config = on_tiles(attention, block)
    check(attention, "amx", config=config)
    assert counted() in (None, model(attention, config))
    emulator.reset()
    check(attention, "amx", values(attention, seed=1), at_end=False, config=config)
    assert counted() in (None, model(attention, config))


# Types of q, k, probabilities and v, and their zero points.
TYPES = [
    (("uint8", "int8", "uint8", "int8"), (0, 0, 0, 0)),
    (("int8", "int8", "int8", "int8"), (3, -7, -3, 9)),
    (("int8", "uint8", "int8", "uint8"), (-5, 130, -128, 120)),
    (("uint8", "uint8", "int8", "int8"), (0, 121, 0, 0)),
]


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(TYPES)), ids=["-".join(x[0]) for x in TYPES])
def test_integers_are_those_of_vectors_to_the_bit(number: int) -> None:
    """All signs are multiplied as they are: results equal VNNI's to the bit."""
    types, zeros = TYPES[number]
    base = case(batch=1, heads=1, m=35, n=(40, 100)[number % 2], d=(72, 24)[number % 2])
    scale = 1 / 100 if types[2] == "int8" and zeros[2] == 0 else 1 / 255
    attention = replace(of_kind(base, "int8"), types=types, zeros=zeros, p_scale=scale)
    attention = replace(attention, mask=("", "keys")[number % 2], absent=-1e4)
    config = on_tiles(attention, ("32x32", "16x64")[number == 3])
    result, wanted = check(attention, "amx", config=config)
    if not any(zeros):
        assert counted() in (None, model(attention, config))
    vectors, _ = check(attention, "amx", config=on_vectors(attention))
    np.testing.assert_array_equal(result, vectors)
    assert np.mean(result == wanted.value) > 0.98


MASKS = [
    (case(batch=1, m=34, n=64, d=64, mask="rows", absent=-1e4), "int8"),
    (case(batch=1, m=40, n=50, d=32, mask="where", absent=-1e9, divided=True), "bf16"),
    (case(batch=1, m=40, n=150, d=32, causal=30), "int8"),
    (case(batch=1, heads=1, m=70, n=70, d=64, causal=0, mask="heads"), "bf16"),
    (replace(case(batch=1, m=33, n=50, d=32, mask="keys", absent=-1e4), score_scale=0.1), "int8"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(MASKS)))
def test_masks(number: int) -> None:
    """Masks are applied to a stored tile or to a row; keys that no query sees are skipped."""
    attention = of_kind(*MASKS[number])
    config = on_tiles(attention, ("32x32", "16x64")[number == 3])
    result, wanted = check(attention, "amx", config=config, at_end=number % 2 == 0)
    if attention.kind == "int8":
        assert np.mean(result == wanted.value) > 0.98
    counts = counted()
    if attention.causal is not None and counts is not None:
        unmasked = model(replace(attention, causal=None), config)
        dots = [sum(x[name] for name in x if name.startswith("tdp")) for x in (counts, unmasked)]
        assert dots[0] < dots[1]


@pytest.mark.parametrize("causal", [None, 107])
def test_blocks_of_keys(causal: int | None) -> None:
    """The result accumulates in place; heads share keys; each height configures tiles once."""
    base = case(batch=1, heads=4, group=2, m=70, n=177, d=40, causal=causal, layout="bhsd")
    attention = of_kind(base, "bf16")
    config = on_tiles(attention, "16x64", key_block=80, query_block=40, band=32, prefetch=True)
    check(attention, "amx", config=config)
    counts = counted()
    assert counts is None or (counts["ldtilecfg"], counts["tilerelease"]) == (8, 4)


def test_threads_give_the_same_bits() -> None:
    """Threads take whole blocks of rows; every task configures and releases its tiles."""
    attention = of_kind(case(batch=1, heads=1, m=75, n=96, d=64), "int8")
    arrays = values(attention)
    alone, _ = check(attention, "amx", arrays, config=on_tiles(attention))
    emulator.reset()
    config = on_tiles(attention, threads=2, parallel=True, row_shares=2)
    shared, _ = check(attention, "amx", arrays, threads=2, config=config)
    np.testing.assert_array_equal(alone, shared)
    counts = counted()
    assert counts is None or (counts["ldtilecfg"], counts["tilerelease"]) == (2, 2)


@pytest.mark.parametrize("tiles_first", [True, False])
def test_one_product_on_tiles_the_other_on_vectors(tiles_first: bool) -> None:
    attention = of_kind(case(batch=1, heads=1, m=45, n=70, d=40), "int8")
    tiles, vectors = on_tiles(attention), on_vectors(attention)
    pair = (tiles.scores_kernel, vectors.product_kernel)
    if not tiles_first:
        pair = (vectors.scores_kernel, tiles.product_kernel)
    mixed, _ = check(attention, "amx", config=with_kernels(attention, *pair))
    plain, _ = check(attention, "amx", config=vectors)
    np.testing.assert_array_equal(mixed, plain)


def test_infinities_and_nan() -> None:
    """Padding of keys and columns is not multiplied by bytes after the operands."""
    attention = of_kind(case(batch=1, heads=2, m=18, n=37, d=24, mask="rows"), "bf16")
    kernel = kernel_of(attention, "amx", 1, on_tiles(attention))
    for number, place in [(0, (0, 2, 5)), (1, (0, 36, 20)), (2, (0, 36, 3)), (3, (0, 0, 3, 36))]:
        for value in (np.inf, -np.inf, np.nan):
            arrays = values(attention)
            arrays[number][place] = value
            result = result_of(attention, kernel, arrays, at_end=number % 2 == 0)
            assert_near(attention, result, expected(attention, arrays))


@given(attentions(), st.sampled_from([*LAYOUTS]), st.sampled_from([0, 32, 64]))
@examples(4, derandomize=True, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_any_attention(drawn: Any, block: str, key_block: int) -> None:
    """All properties at once; f32 is rounded to bfloat16."""
    attention, _, threads = drawn
    if attention.kind == "f32":
        attention = of_kind(attention, "rounded")
    fields = {} if attention.kind == "int8" else {"key_block": key_block}
    config = on_tiles(attention, block, threads, **fields)
    check(attention, "amx", threads=threads, config=config)
    emulator.check()


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_large_attentions_are_on_tiles_and_small_ones_are_not(kind: str) -> None:
    def kernels(**fields: int) -> list[bool]:
        region = of_kind(case(batch=1, heads=12, **fields), kind).region
        config = ATTENTION.default_config(region, machine_for("amx"))
        assert isinstance(config, AttentionConfig)
        names = config.scores_kernel, config.product_kernel
        return [microkernel_named(name).by_tiles and not config.skinny for name in names]

    assert kernels(m=128, n=128, d=64) == kernels(m=384, n=384, d=32) == [True, True]
    assert kernels(m=1, n=512, d=64) == [False, False]
    # Sapphire Rapids starts a dot product of bfloat16 in every other cycle.
    assert kernels(m=5, n=64, d=64) == [kind == "bf16"] * 2


@pytest.mark.parametrize("unit", [1, 16, 32])
def test_rows_are_cut_into_whole_blocks_and_one_tail(unit: int) -> None:
    for rows in (1, 15, 16, 33, 64, 70, 100, 128):
        for parts in (1, 2, 3, 7):
            for pieces in (
                cut_in_units(rows, math.ceil(rows / parts), unit),
                row_shares(rows, parts, unit),
            ):
                sizes = [group.size for group in pieces for _ in range(group.count)]
                assert sum(sizes) == rows and sizes == sorted(sizes, reverse=True)
                assert all(size % unit == 0 for size in sizes[:-1])
            assert len(sizes) <= parts and len(pieces) <= 2


def test_what_does_not_fit_is_refused() -> None:
    attention, isa = of_kind(case(m=40, n=64, d=64), "int8"), isa_named("amx")
    unlike = with_kernels(attention, "amx_u8u8s32_32x32", "amx_u8u8s32_16x64")
    with pytest.raises(ConfigError, match="tiles of one height"):
        ATTENTION.build(attention.region, unlike, isa)
    signed = with_kernels(attention, "amx_s8s8s32_32x32", "amx_u8u8s32_32x32")
    with pytest.raises(ConfigError, match="does not multiply"):
        ATTENTION.build(attention.region, signed, isa)
    with pytest.raises(ConfigError, match="needs amx"):
        ATTENTION.build(attention.region, on_tiles(attention), isa_named("avx512_vnni"))
