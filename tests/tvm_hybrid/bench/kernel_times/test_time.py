"""Times add up, fall with threads, and never fall faster than the thread count grows."""

from __future__ import annotations

import pytest

from tests.tir_schedules.cost.test_nests import matmul
from tests.tvm_hybrid.bench.kernel_times.small_kernels import built, machine, program_of, sums
from tir_schedules.core.template import template_for
from tvm_hybrid.bench.kernel_times.index import Index
from tvm_hybrid.bench.kernel_times.nodes import Memory
from tvm_hybrid.bench.kernel_times.time import FAR, NEAR, SHARED, Origin, kernel_time
from tvm_hybrid.bench.kernel_times.traffic import ALL, ROWS, Part, Pattern, parts_of


def test_named_parts_are_the_time() -> None:
    region = matmul(512, 512, 512)
    for threads in (1, 2, 8):
        host = machine(threads)
        program = built(region, template_for("matmul").default_config(region, host))
        found = kernel_time(program, host, {0: Origin(SHARED), 1: Origin(FAR)})
        assert sum(found.named.values()) == pytest.approx(found.time)
        assert all(value >= 0 for value in found.named.values())


def test_imbalance_is_the_share_of_the_busiest() -> None:
    host = machine(4)
    (phase,) = kernel_time(program_of(sums(1600, 100, tasks=5)), host).phases
    # Five tasks on four threads: two, two and one.
    assert phase.threads == 3 and phase.parallel
    assert phase.compute / phase.mean == pytest.approx(2 / (5 / 4))


def test_threads_make_it_faster_but_never_more_than_so_many_times() -> None:
    alone = kernel_time(program_of(sums(1600, 400, tasks=8)), machine()).time
    times = [kernel_time(program_of(sums(1600, 400, tasks=8)), machine(n)).time for n in (2, 4, 8)]
    assert alone > times[0] > times[1] > times[2]
    assert all(time * n >= alone * 0.99 for time, n in zip(times, (2, 4, 8), strict=True))


def test_far_bytes_take_longer() -> None:
    program, host = program_of(sums(16384, 16)), machine()
    near, shared, far = (
        kernel_time(program, host, {0: Origin(level)}).time for level in (NEAR, SHARED, FAR)
    )
    assert near < shared < far


def test_what_another_core_wrote_takes_longer_than_ones_own() -> None:
    program, host = program_of(sums(1600, 64, tasks=4)), machine(4)
    part = kernel_time(program, host).parts[1]
    assert part == Part(ROWS, 4)
    own = kernel_time(program, host, {1: Origin(NEAR, part)}).time
    foreign = kernel_time(program, host, {1: Origin(NEAR, Part(ROWS, 1))}).time
    assert own < foreign


def test_the_limit_of_a_product_that_computes() -> None:
    region = matmul(512, 512, 512)
    host = machine()
    program = built(region, template_for("matmul").default_config(region, host))
    assert kernel_time(program, host).limit in ("compute", "L2")


def test_what_all_threads_read_is_no_run_of_rows() -> None:
    pieces = Memory("x", 0, 1000)
    touched = [Pattern(pieces, Index(start), 420) for start in (0, 420)]
    assert parts_of(touched, 2) == {0: Part(ALL, 2)}
    assert parts_of(touched[:1], 2) == {0: Part(ROWS, 2)}
