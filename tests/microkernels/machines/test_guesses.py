"""An unknown number widens the set of candidates; a measured one narrows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from microkernels.isa import isa_named
from microkernels.machines.description import BASE, describe, described, read_description
from microkernels.machines.guesses import WEIGHED, decided, plausible, unknown_numbers
from microkernels.machines.machine import Machine


def machine(tmp_path: Path, kind: str) -> Machine:
    """A machine by a user's description, which states the rate of L3 and inherits the rest."""
    path = tmp_path / f"{kind}.json"
    rate = {"value": [[1, 40000], [8, 200000]], "kind": kind, "source": "a test"}
    text = {"title": "a test", "inherits": "znver4", "numbers": {"l3_rate": rate}}
    path.write_text(json.dumps(text))
    return Machine("znver4", isa_named("avx512"), 2, read_description(path))


@pytest.mark.parametrize("name", sorted({*described()} - {BASE}))
def test_a_described_cpu_is_taken_as_it_is_described(name: str) -> None:
    one = Machine(name, isa_named("avx2"), 2)
    assert unknown_numbers(one.description) == [] and plausible(one) == (one,)


def test_any_cpu_may_be_slower_or_faster() -> None:
    one = Machine(BASE, isa_named("avx2"), 2)
    assert unknown_numbers(one.description) == list(WEIGHED)
    same, low, high = plausible(one)
    assert same is one
    for number in ("l2_bytes", "l3_bytes"):
        sizes = [getattr(each, number) for each in (low, one, high)]
        assert sizes == [sizes[1] // 2, sizes[1], sizes[1] * 2]
    assert low.memory_rate(8) == one.memory_rate(8) / 2 == high.memory_rate(8) / 4
    assert low.fork_us(2) == one.fork_us(2) * 2 == high.fork_us(2) * 4
    assert low.l1_bytes == one.l1_bytes and low.fma_rate == one.fma_rate


def test_what_a_file_measures_is_one_value_and_what_it_guesses_a_range(tmp_path: Path) -> None:
    guessed, measured = machine(tmp_path, "guess"), machine(tmp_path, "measured")
    assert [each.l3_rate(8) for each in plausible(guessed)] == [25000, 12500, 50000]
    assert plausible(measured) == (measured,)
    assert guessed.l2_bytes == plausible(guessed)[1].l2_bytes == describe("znver4").at("l2_bytes")


def test_the_candidate_that_loses_least_is_taken(tmp_path: Path) -> None:
    """If L3 is slower, the best one by the guess loses nine tenths, another one a fifth at most."""
    one = machine(tmp_path, "guess")
    costs = {
        "by the guess": {12500: 19.0, 25000: 10.0, 50000: 10.0},
        "if slow": {12500: 10.0, 25000: 12.0, 50000: 11.0},
        "if fast": {12500: 30.0, 25000: 11.0, 50000: 9.5},
    }
    best = {12500: "if slow", 25000: "by the guess", 50000: "if fast"}
    asked: list[float] = []

    def choose(other: Machine) -> str:
        asked.append(other.l3_rate(8))
        return best[int(other.l3_rate(8))]

    def cost(name: str, other: Machine) -> float:
        return costs[name][int(other.l3_rate(8))]

    assert decided(one, choose, cost) == "if slow"
    assert asked == [25000, 12500, 50000]
    assert decided(one, choose, lambda _name, _machine: 5.0) == "by the guess"  # equal costs
    asked.clear()
    known = machine(tmp_path, "measured")
    assert decided(known, choose, cost) == "by the guess" and asked == [25000]
