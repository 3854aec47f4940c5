"""A step of K of a register tile takes longer if more than one resource is nearly used up."""

from __future__ import annotations

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine


def a_vector(machine: Machine, rows: int, vectors: int) -> float:
    """Cycles that one product of a tile takes in a step of K."""
    return machine.step_cycles(rows, vectors, machine.fma_rate) / (rows * vectors)


def test_a_wait_that_is_nearly_the_longest_takes_time() -> None:
    """Zen 5 and AVX2: 8 accumulators were 15% slower than 12, 9 were 10%, 10 were 5%."""
    machine = Machine("znver5", isa_named("avx2"))
    full, *fewer = (a_vector(machine, *tile) for tile in ((6, 2), (5, 2), (3, 3), (2, 4)))
    assert full < fewer[0] < fewer[1] < fewer[2] < 1.16 * full
    assert a_vector(machine, 2, 4) > 1.07 * full


def test_a_narrow_tile_takes_longer_where_few_instructions_are_issued() -> None:
    """Two vectors of a tile of three: as many instructions for A, fewer products."""
    narrow = {
        name: a_vector(machine, 8, 2) / a_vector(machine, 8, 3)
        for name in ("skylake-avx512", "icelake-server", "sapphirerapids", "znver4")
        for machine in [Machine(name, isa_named("avx512"))]
    }
    assert narrow["skylake-avx512"] > 1.03 > narrow["icelake-server"] > 1.005
    assert narrow["icelake-server"] > narrow["sapphirerapids"] > 1.0
    assert abs(narrow["znver4"] - 1) < 0.002  # a rate of one product a cycle hides all else
