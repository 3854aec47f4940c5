"""Finals: the search's leaders are measured again, and chosen only if that confirms them."""

from __future__ import annotations

import dataclasses
import itertools
from types import ModuleType

import pytest

from microkernels.machines.machine import Machine
from tvm_hybrid.records.record_lookup import RecordLookup
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning.tune_regions import tune_regions

from .conftest import MakeRecord
from .pretended import ALL, DEFAULT_US, Pretended


def confirmed(store: RecordStore) -> dict[int, list[bool | None]]:
    """Block -> the `confirmed` field of each of its records."""
    said: dict[int, list[bool | None]] = {}
    for record, _ in store:
        said.setdefault(int(record.config["block"]), []).append(record.confirmed)
    return said


def test_luck_does_not_win_the_finals(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    # Block 1 was lucky once; longer measurements are slow.
    pretended = Pretended(lambda block, final: 1.0 if block == 1 and not final else 10 - block / 10)
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL)
    assert result.regions[0].best == {"block": 64, "mode": "right"}
    assert confirmed(store) == {
        8: [True],
        1: [None, False],
        2: [None],
        4: [None],
        16: [None],
        32: [None, True],
        64: [None, True],
    }


@pytest.mark.parametrize("final_us", [8.0, 7.95, 9.0, -1.0])
def test_what_is_not_confirmed_is_never_chosen(
    final_us: float, toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    """All look twice as fast in the search, but equal the default, or fail, in finals."""

    def time_us(block: int, final: bool) -> float:
        return DEFAULT_US if block == 8 else final_us if final else 4.0

    pretended = Pretended(time_us)
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL)
    # Rounds of three, until no candidate that looks faster remains.
    assert sorted(pretended.finals) == [1, 2, 4, 16, 32, 64]
    assert result.regions[0].best == {"block": 8, "mode": "right"}
    assert result.regions[0].speedup == 1.0 and result.best_us == result.default_us == 8.0
    found = RecordLookup(store)(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=8)
    again = Pretended(time_us)
    tune_regions([(toy.region(), 1)], machine, again, store, ALL)
    assert again.blocks == again.finals == []


def test_what_looks_a_little_faster_gets_no_final(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    pretended = Pretended(lambda block, final: 8.0 - block / 1000)
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, ALL)
    assert pretended.finals == []
    assert result.regions[0].best == {"block": 8, "mode": "right"}
    found = RecordLookup(store)(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=8)


def test_finals_that_are_missing_are_made(
    toy: ModuleType, machine: Machine, store: RecordStore
) -> None:
    searched = Pretended()
    plan = dataclasses.replace(ALL, finals=False)
    tune_regions([(toy.region(), 1)], machine, searched, store, plan)
    assert set(itertools.chain(*confirmed(store).values())) == {None}
    again = Pretended()
    result = tune_regions([(toy.region(), 1)], machine, again, store, ALL)
    assert (again.blocks, again.finals) == ([], [64, 32, 16])
    assert confirmed(store)[8] == [None, True]
    assert result.regions[0].speedup == 8.0


@pytest.mark.parametrize("tried", [False, True])
def test_another_default_is_a_new_comparison(
    tried: bool, toy: ModuleType, machine: Machine, store: RecordStore, record: MakeRecord
) -> None:
    """Two blocks were confirmed as faster than block 2, the default then; now it is block 8."""
    store.append(record(2, 32.0, baseline_us=32.0, confirmed=True))
    if tried:
        store.append(record(8, 8.0, baseline_us=32.0))
    for block in (1, 64):
        store.append(record(block, 16.0, baseline_us=32.0))
        store.append(record(block, 16.0, baseline_us=32.0, confirmed=True))
    plan = dataclasses.replace(ALL, trials=4)

    def time_us(block: int, final: bool) -> float:
        return {8: DEFAULT_US, 64: 7.0}.get(block, 9.0)

    pretended = Pretended(time_us)
    result = tune_regions([(toy.region(), 1)], machine, pretended, store, plan)
    assert (pretended.blocks, pretended.finals) == ([8], [2, 1, 64])
    assert result.regions[0].best == {"block": 64, "mode": "right"}
    assert result.regions[0].speedup == 8 / 7
    found = RecordLookup(store)(toy.region(), machine)
    assert found is not None and found[0] == toy.ToyConfig(block=64)
    again = Pretended(time_us)
    tune_regions([(toy.region(), 1)], machine, again, store, plan)
    assert again.blocks == again.finals == []
