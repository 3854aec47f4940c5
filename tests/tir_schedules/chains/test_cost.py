"""The cost of chains: each of its terms decides a case for merging and one against it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.chains.cost import ChainEstimate, estimate_chain
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.blocking import shares_of_units
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.cost import Cost
from tir_schedules.cost.parallel import CHAIN

F = "float32"
ONE = Machine("znver4", isa_named("avx512"))
TWO = dataclasses.replace(ONE, threads=2)
# 1 MB of L2, so that results between layers may be beyond it.
AMX = Machine("sapphirerapids", isa_named("amx"))
INTEGERS = ("uint8", "int8")
MLP_1 = (13, 512, 256, 128)
WIDE = (384, 1536, 384)


def matmul(m: int, k: int, n: int) -> Region:
    inputs = (Tensor((m, k), F), Tensor((k, n), F, constant=True))
    return Region(op="matmul", inputs=inputs, output=Tensor((m, n), F))


def chain(m: int, widths: Sequence[int], dtypes: tuple[str, str] = (F, F)) -> Region:
    """A chain of products."""
    activation, weight = dtypes
    parts: list[Region] = []
    inputs, sources = [Tensor((m, widths[0]), activation)], []
    for k, n in itertools.pairwise(widths):
        w = Tensor((k, n), weight, constant=True)
        a, output = Tensor((m, k), activation), Tensor((m, n), activation)
        attrs: dict[str, Attribute] = {"a_zero_point": 0} if weight == "int8" else {}
        sources.append(f"{f'p{len(parts) - 1}' if parts else 'i0'},i{len(inputs)}")
        parts.append(Region(op="matmul", inputs=(a, w), output=output, attrs=attrs))
        inputs.append(w)
    return Region(
        op="mlp_chain",
        inputs=tuple(inputs),
        output=parts[-1].output,
        attrs={"sources": ";".join(sources)},
        parts=tuple(parts),
    )


def costs(estimate: ChainEstimate) -> tuple[Cost, Cost]:
    """The cost of the separate parts, and of the best merged kernel."""
    return estimate.separate, estimate.merged


@pytest.mark.parametrize("m", [1, 32, 128])
@pytest.mark.parametrize("dtypes", [(F, F), ("bfloat16", "bfloat16"), ("uint8", "int8")])
def test_on_one_thread_a_small_chain_saves_its_calls(m: int, dtypes: tuple[str, str]) -> None:
    machine = dataclasses.replace(ONE, isa=isa_named("avx512_bf16"))
    estimate = estimate_chain(chain(m, MLP_1, dtypes), machine)
    assert estimate.pays and estimate.plan.mode == "rows"
    assert (estimate.plan.tasks, estimate.plan.block) == (1, m)
    assert estimate.saved == pytest.approx(2 * ONE.call_us)
    assert "calls and barriers -0.7" in str(estimate) and f"{m} rows on 1 thread" in str(estimate)


def test_on_two_threads_it_saves_barriers_too() -> None:
    """Products large enough for two threads: two of their three barriers are saved."""
    before, after = costs(estimate_chain(chain(32, (256, 512, 512, 512)), TWO))
    assert before.barriers == pytest.approx(3 * (TWO.call_us + TWO.fork_us(2)))
    assert after.barriers == pytest.approx(TWO.call_us + TWO.fork_us(2))


def test_a_call_is_not_worth_merging_large_products() -> None:
    estimate = estimate_chain(chain(128, (768, 3072, 768)), ONE)
    assert not estimate.pays
    assert 0 < estimate.saved < CHAIN.share * estimate.separate.total


def test_rows_lose_parallelism_where_there_are_few() -> None:
    """One row cannot be split among threads; its columns can."""
    estimate = estimate_chain(chain(1, (1024, 2048, 1024)), TWO)
    assert estimate.rows.tasks == 1 and estimate.rows.cost.total > 1.5 * estimate.merged.total
    assert estimate.pays and estimate.plan.mode == "columns" and estimate.plan.tasks == 2
    assert estimate.saved == pytest.approx(TWO.call_us)
    assert "by columns on 2 threads" in str(estimate)


def test_rows_are_shared_where_there_are_enough() -> None:
    estimate = estimate_chain(chain(32, (1024, 2048, 1024)), TWO)
    assert estimate.pays and estimate.plan.mode == "rows"
    assert (estimate.plan.tasks, estimate.plan.block) == (2, 16)


def test_results_beyond_l2_are_saved_by_blocks_of_rows() -> None:
    """3 MB between the layers, which blocks of rows keep in L2."""
    estimate = estimate_chain(chain(512, WIDE), ONE)
    before, after = costs(estimate)
    assert estimate.pays and before.between > 0 == after.between
    assert estimate.plan.block * 4 * 1536 <= ONE.l2_bytes // 2
    roomy = estimate_chain(chain(512, WIDE), ONE.with_numbers(l2_bytes=64 << 20))
    assert roomy.separate.between == 0 and not roomy.pays


def test_large_weights_are_not_streamed_for_every_block() -> None:
    """If the weights come from memory, each block of rows would read them again."""
    small_l3 = ONE.with_numbers(l3_bytes=4 << 20)
    estimate = estimate_chain(chain(512, WIDE), small_l3)
    assert not estimate.pays
    blocks = estimate_chain(chain(512, WIDE), ONE).rows
    assert blocks.block < 512
    # The saving between the layers is smaller than the cost of reading weights again.
    before = estimate.separate
    again = -(-512 // blocks.block) - 1
    assert before.between < again * before.weights
    assert estimate.rows.cost.weights < 2 * before.weights  # one block reads them once


def test_weights_in_l2_cost_nothing_to_read_again() -> None:
    estimate = estimate_chain(chain(512, (64, 128, 64)), ONE)
    assert estimate.separate.weights == estimate.rows.cost.weights == 0


def test_rows_that_another_core_wrote_are_saved() -> None:
    """After a product on one thread, the other thread reads half of its result from that core."""
    region = chain(32, (4, 512, 512))
    before, after = costs(estimate_chain(region, TWO))
    half = 16 * 512 * 4
    assert before.between == pytest.approx(half / TWO.foreign_rate) and after.between == 0
    assert costs(estimate_chain(region, ONE))[0].between == 0


def test_a_normalisation_is_a_part() -> None:
    product = matmul(64, 384, 384)
    x = Tensor((64, 384), F)
    weights = (Tensor((384,), F, True),) * 2
    norm = Region(
        op="layer_norm",
        inputs=(x, *weights),
        operands=(x,),
        output=x,
        attrs={"axis": 1, "epsilon": 1e-5},
    )
    region = Region(
        op="mlp_chain",
        inputs=(x, product.inputs[1], *weights),
        output=x,
        attrs={"sources": "i0,i1;p0,i2,i3,i0"},
        parts=(product, norm),
    )
    estimate = estimate_chain(region, TWO)
    assert estimate.pays and estimate.plan.mode == "rows"
    alone = estimate_chain(chain(64, (384, 384, 384)), TWO).separate.compute / 2
    # 64 rows of 24 vectors at 7 cycles; only the chain splits them between two threads.
    sweep = 64 * 24 * 7 / 3700
    assert estimate.separate.compute == pytest.approx(alone + sweep)
    assert estimate.merged.compute == pytest.approx(alone + sweep / 2)


def test_more_threads_never_cost_more() -> None:
    for m in (1, 7, 64, 512):
        for widths in (MLP_1, WIDE):
            one, two = (estimate_chain(chain(m, widths), machine) for machine in (ONE, TWO))
            assert two.merged.total <= one.merged.total


def test_tiles_compute_up_to_eight_times_as_fast() -> None:
    region = chain(64, (512, 256, 256), INTEGERS)
    vnni = dataclasses.replace(AMX, isa=isa_named("avx512_vnni"))
    tiles, vectors = (estimate_chain(region, machine) for machine in (AMX, vnni))
    ratio = vectors.separate.compute / tiles.separate.compute
    assert 4 < ratio <= 8
    assert tiles.pays and tiles.saved == pytest.approx(AMX.call_us)


def test_tiles_wait_for_weights_from_l3() -> None:
    """Every block of rows streams them again; on tiles, computing hides less of that."""
    rate = AMX.l3_rate()
    once = 2 * 1024 * 2048 / rate
    before, after = costs(estimate_chain(chain(32, (1024, 2048, 1024), INTEGERS), AMX))
    for cost in (before, after):
        assert once <= cost.compute + cost.weights < 1.2 * once
    rows = estimate_chain(chain(512, WIDE, INTEGERS), AMX).rows
    passes = -(-512 // rows.block)
    assert passes * 2 * 384 * 1536 / rate <= rows.cost.compute + rows.cost.weights


@pytest.mark.parametrize("m", [33, 100, 384, 1000])
@pytest.mark.parametrize("threads", [1, 4])
def test_blocks_of_rows_are_whole_tiles(m: int, threads: int) -> None:
    machine = dataclasses.replace(AMX, threads=threads).with_numbers(l2_bytes=256 << 10)
    plan = estimate_chain(chain(m, (512, 2048, 512), INTEGERS), machine).rows
    assert plan.block % 32 == 0 or plan.block == -(-m // plan.tasks)


def test_rows_are_cut_into_units() -> None:
    for m, blocks, unit in itertools.product((1, 31, 150, 200), (1, 3, 8), (1, 16, 32)):
        groups = shares_of_units(m, blocks, unit)
        sizes = [group.size for group in groups for _ in range(group.count)]
        assert sum(sizes) == m and len(sizes) == min(blocks, -(-m // unit))
        assert all(size % unit == 0 for size in sizes[:-1])
        assert max(sizes) == sizes[0] < m / len(sizes) + 2 * unit
