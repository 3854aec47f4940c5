"""All threads pack K and V before the first product: equal bits, each packed once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir, tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.tir_schedules.attention_checks import best, check, kernel_of, result_of
from tests.tir_schedules.attention_regions import Attention, case, of_kind, values
from tests.tir_schedules.run_region import machine_for
from tir_schedules.attention.attention import ATTENTION
from tir_schedules.attention.config import AttentionConfig
from tvm_hybrid.runtime.threads import use_threads

pytestmark = pytest.mark.turns

AMX = pytest.param("amx", marks=pytest.mark.isa("amx"))
KINDS = ["f32", "rounded", "bf16", "int8"]
CASES = {
    "tails": case(m=37, n=53, d=29, e=19, mask="keys"),
    "transposed": case(m=16, n=70, d=20, layouts=("bhsd", "bhds", "bhds", "bhsd"), causal=3),
    "transposed k": case(m=16, n=70, d=20, layouts=("bhsd", "bhds", "bhsd", "bhsd")),
    "groups": case(heads=6, group=3, m=33, n=31, d=16),
    "one key": case(m=9, n=1, d=1),
    "one head": case(batch=1, heads=1, m=7, n=300, d=8),
}


def shared(attention: Attention, isa: str, **fields: object) -> AttentionConfig:
    """The default configuration with three tasks for each head."""
    config = ATTENTION.default_config(attention.region, machine_for(isa))
    assert isinstance(config, AttentionConfig)
    whole = {"skinny": False, "row_shares": 3, "parallel": True, "prefetch": False}
    return msgspec.structs.replace(config, **{**whole, **fields})


@pytest.mark.parametrize("isa", ["avx2", "", AMX])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled
def test_the_same_bits_as_packed_by_every_task(name: str, kind: str, isa: str) -> None:
    attention, isa = of_kind(CASES[name], kind), isa or best(kind)
    arrays = values(attention)
    alone, _ = check(attention, isa, arrays, config=shared(attention, isa))
    for threads, at_end in ((0, True), (0, False), (5, True)):
        config = shared(attention, isa, packs_first=True, threads=threads)
        kernel = kernel_of(attention, isa, config=config)
        np.testing.assert_array_equal(result_of(attention, kernel, arrays, at_end), alone)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["", AMX])
@pytest.mark.parametrize("kind", ["f32", "int8"])
def test_more_threads_than_cpus(kind: str, isa: str) -> None:
    """Packing is complete before any thread reads it, also with more threads than CPUs."""
    attention = of_kind(case(batch=1, heads=3, m=40, n=90, d=24), kind)
    isa, arrays = isa or best(kind), values(attention)
    alone, _ = check(attention, isa, arrays, config=shared(attention, isa))
    for threads in (3, 7, 53, 112):
        config = shared(attention, isa, packs_first=True, threads=threads, row_shares=40)
        kernel = kernel_of(attention, isa, config=config)

        def run(kernel: object = kernel, threads: int = threads) -> list[np.ndarray]:
            use_threads(threads)  # a setting of this thread only
            return [result_of(attention, kernel, arrays, True) for _ in range(3)]

        with ThreadPoolExecutor(1) as pool:
            for found in pool.submit(run).result():
                np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("threads", [0, 7])
@pytest.mark.parametrize("packs_first", [False, True])
def test_k_and_v_are_packed_outside_of_the_tasks(packs_first: bool, threads: int) -> None:
    attention = case(batch=1, heads=3, m=40, n=90, d=24)
    config = shared(attention, "avx512", packs_first=packs_first, threads=threads, row_shares=9)
    function = ATTENTION.build(attention.region, config, isa_named("avx512"))
    loops = parallel_loops(function)
    packing = [{"pack", "scores"} & blocks_in(loop) for loop in loops]
    assert packing == ([{"pack"}, {"scores"}] if packs_first else [{"pack", "scores"}])
    # Six vectors of keys and six groups of 16 rows of V, for each of three heads.
    extents = [int(loop.extent) for loop in loops]
    tasks = [3 * (6 + 6), 27] if packs_first else [27]
    assert extents == [threads or count for count in tasks]


def parallel_loops(function: tirx.PrimFunc) -> list[tirx.For]:
    found: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            found.append(loop)

    tvm_ffi.structural_walk(function.body, ((tirx.For, visit),), order="pre")
    return found


def blocks_in(loop: tirx.For) -> set[str]:
    found: set[str] = set()

    def visit(block: s_tir.SBlock) -> None:
        found.add(str(block.name_hint))

    tvm_ffi.structural_walk(loop, ((s_tir.SBlock, visit),), order="pre")
    return found


def test_a_number_of_threads_below_none_is_refused() -> None:
    attention = case()
    config = shared(attention, "avx512", threads=-1)
    with pytest.raises(ConfigError, match="threads=-1"):
        ATTENTION.check(attention.region, config, isa_named("avx512"))
