"""Descriptions of CPUs: required numbers, inheritance, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from microkernels.base.errors import TargetError
from microkernels.isa import isa_named
from microkernels.machines.description import BASE, Number, describe, described, read_description
from microkernels.machines.machine import Machine

# Numbers that may be a curve over threads; all others belong to one core.
CURVES = {"l3_exposed", "result_exposed", "l3_rate", "memory_rate", "fork_us"}
NUMBER = {"value": 1, "kind": "guess", "source": "a test"}


def written(path: Path, **content: object) -> Path:
    path.write_text(json.dumps({"title": "a test", "numbers": {}, **content}))
    return path


@pytest.mark.parametrize("name", described())
def test_a_shipped_description_states_all_there_is(name: str) -> None:
    found, base = describe(name), describe(BASE)
    assert found.numbers.keys() == base.numbers.keys()
    for number, stated in found.numbers.items():
        assert stated.source, number
        assert isinstance(stated.value, tuple) <= (number in CURVES), number
        assert stated.at(1) > 0 or number == "fork_us"
        assert found.origins[number] in described()


@pytest.mark.parametrize("name", described())
@pytest.mark.parametrize("number", sorted(CURVES))
def test_more_threads_get_more_together_and_take_longer_to_fork(name: str, number: str) -> None:
    found = describe(name)
    values = [found.at(number, threads) for threads in range(1, 200)]
    assert values == sorted(values)


@pytest.mark.parametrize("name", described())
def test_caches_grow_and_machines_can_be_made(name: str) -> None:
    machine = Machine(name, isa_named("avx2"), 2)
    assert machine.l1_bytes < machine.l2_bytes < machine.l3_bytes
    assert machine.l3_rate() <= machine.l2_rate and machine.memory_rate() <= machine.l3_rate()
    assert machine.fork_us(1) == 0 < machine.fork_us(2) <= machine.fork_us(64)
    assert machine.l3_rate(64) <= machine.l3_rate() and machine.memory_rate(64) <= machine.l3_rate()


def test_what_amx_needs_is_stated_where_it_is() -> None:
    for name in ("sapphirerapids", "emeraldrapids", "graniterapids"):
        core = Machine(name, isa_named("amx")).tile_core
        assert core.tdp == 16 and core.clock > 1000


def test_a_curve_goes_straight_from_point_to_point() -> None:
    curve = Number(((1, 10.0), (3, 20.0), (5, 20.0)), "guess", "a test")
    assert [curve.at(threads) for threads in (1, 2, 3, 4, 5, 100)] == [10, 15, 20, 20, 20, 20]


def test_an_elder_states_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.json", inherits="znver4", numbers={"l1_bytes": NUMBER})
    found = read_description(path)
    assert found.at("l1_bytes") == 1 and found.origins["l1_bytes"] == found.name == str(path)
    assert found.at("l2_bytes") == 1 << 20 and found.origins["l2_bytes"] == "znver4"


def test_changed_numbers_say_so() -> None:
    changed = Machine("znver4", isa_named("avx512")).with_numbers(l2_bytes=1 << 16)
    assert changed.l2_bytes == 1 << 16 and changed.l1_bytes == 32 << 10
    assert changed.description.numbers["l2_bytes"].kind == "guess"


def test_copies_are_left_to_memcpy_where_string_instructions_were_not_measured() -> None:
    slow = {name for name in described() if describe(name).at("string_copy_cost") > 1}
    assert slow == {"znver3", "znver4"}


def test_a_cpu_without_a_description_gets_the_base() -> None:
    assert describe("k8").name == BASE
    assert describe("tigerlake").name == "icelake-server"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no description"),
        ({"numbers": {"l1_bytes": 3}}, "is no description"),
        ({"numbers": {"l1_bytes": {**NUMBER, "kind": "rumour"}}}, "is no description"),
        ({"numbers": {"l1_bytes": NUMBER}, "cache": 3}, "is no description"),
        ({"numbers": {"fork_us": {**NUMBER, "value": [[2, 1], [1, 3]]}}}, "fork_us is no curve"),
        ({"numbers": {"fork_us": {**NUMBER, "value": []}}}, "fork_us is no curve"),
        ({"inherits": "znver99"}, "inherits znver99; there are"),
        ({"numbers": {"l1_bytes": NUMBER}}, "does not state .*; let it inherit x86-64"),
        ({"inherits": "znver4", "numbers": {"l1_byte": NUMBER}}, "there is no number l1_byte"),
        ({"numbers": {"clock_512": {**NUMBER, "value": 0}}}, "clock_512 has to be above 0"),
        ({"numbers": {"fork_us": {**NUMBER, "value": [[1, 0], [2, -1]]}}}, "fork_us has to be"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "mine.json"
    if isinstance(content, str):
        path.write_text(content)
    else:
        assert isinstance(content, dict)
        written(path, **content)
    with pytest.raises(TargetError, match=message):
        read_description(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"nothing\.json"):
        read_description(tmp_path / "nothing.json")
