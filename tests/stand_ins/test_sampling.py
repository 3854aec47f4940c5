"""Tests which tests run in a turn, and that each test has a turn."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.examples import DAY_VARIABLE, DAYS, EVERY_ISA, in_turn, some, today, turns_of

from .sampling import kept_isas, left_out

ISAS = ["scalar", "avx2", "avx2_vnni", "avx512", "avx512_vnni"]


def kept_of(tests: dict[str, list[str]], turn: int = 0) -> dict[str, list[str]]:
    kept = kept_isas(((name, isa) for name, isas in tests.items() for isa in isas), turn)
    return {name: [isa for isa in isas if (name, isa) in kept] for name, isas in tests.items()}


def test_another_third_from_test_to_test() -> None:
    assert kept_of({f"a.py::test_{n}": ISAS for n in range(4)}) == {
        "a.py::test_0": ["scalar", "avx512"],
        "a.py::test_1": ["avx2", "avx512_vnni"],
        "a.py::test_2": ["avx2_vnni"],
        "a.py::test_3": ["scalar", "avx512"],
    }


def test_each_file_keeps_each_instruction_set() -> None:
    """An ISA that a file's other tests leave out runs in the file's first test that has it."""
    tests = {"a.py::test_0": ISAS[:3], "a.py::test_1": ISAS[:2], "b.py::test_0": ISAS}
    assert kept_of(tests) == {
        "a.py::test_0": ["scalar", "avx2_vnni"],
        "a.py::test_1": ["avx2"],
        "b.py::test_0": ISAS,
    }


def test_each_test_keeps_one() -> None:
    tests = {f"a.py::test_{n}": ISAS[: 1 + n % 3] for n in range(9)}
    assert all(all(kept_of(tests, turn).values()) for turn in range(EVERY_ISA))


def test_each_turn_has_other_isas_and_all_turns_have_each() -> None:
    tests = {f"a.py::test_{n}": ISAS[: 1 + n % 5] for n in range(9)}
    turns = [kept_of(tests, turn) for turn in range(EVERY_ISA)]
    for name, isas in tests.items():
        assert {isa for turn in turns for isa in turn[name]} == set(isas)
        assert len(isas) < EVERY_ISA or turns[0][name] != turns[1][name]


@pytest.mark.parametrize("every", range(1, 9))
def test_all_turns_have_each_number(every: int) -> None:
    for count in range(40):
        turns = [in_turn(count, every, 1000 + turn) for turn in range(every)]
        assert all(turns) or not count
        assert sorted({n for turn in turns for n in turn}) == list(range(count))


def test_all_days_have_each_combination_of_turns() -> None:
    """For any test: up to 3 cases, up to 3 instruction sets, up to 8 samples."""
    days = [turns_of(day) for day in range(DAYS)]
    assert len(set(days)) == DAYS
    for cases, isas, samples in [(3, 3, 8), (2, 3, 6), (3, 2, 3), (3, 3, 5)]:
        met = {(day.case % cases, day.isa % isas, day.sample % samples) for day in days}
        assert len(met) == cases * isas * samples
    for day, next_day in pairwise(days):
        assert all(old != new for old, new in zip(day, next_day, strict=True)), (day, next_day)


def test_cases_of_a_loop_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.examples._FEW", True)
    for count in range(1, 12):
        met = set()
        for day in range(3):
            monkeypatch.setenv(DAY_VARIABLE, str(day))
            chosen = some(range(count))
            assert chosen[-1] == count - 1 and len(chosen) <= 2 + count // 3
            met.update(chosen)
        assert met == set(range(count))


def test_the_variable_names_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DAY_VARIABLE, str(DAYS + 5))
    assert today() == 5
    monkeypatch.setenv(DAY_VARIABLE, "tomorrow")
    with pytest.raises(ValueError, match=f"{DAY_VARIABLE}='tomorrow' is not a number"):
        today()


def test_each_sampled_test_has_its_turn(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def items(name: str, count: int) -> list[pytest.Item]:
        made: list[pytest.Item] = []
        for n in range(count):
            item = pytest.Function.from_parent(
                request.node.parent, name=f"{name}[{n}]", callobj=lambda: None
            )
            item.add_marker("sampled")
            item.add_marker(pytest.mark.isa(ISAS[n % 2]))
            made.append(item)
        return made

    tests = {f"test_{count}": items(f"test_{count}", count) for count in (1, 2, 7, 16, 41)}
    every = [item for some_items in tests.values() for item in some_items]
    met = set()
    for day in range(DAYS):
        monkeypatch.setenv(DAY_VARIABLE, str(day))
        left = set(left_out(every))
        for some_items in tests.values():
            stay = set(some_items) - left
            assert 1 <= len(stay) <= 2 * -(-len(some_items) // 16)
            met |= stay
    assert met == set(every)


def test_a_file_of_long_tests_has_a_third_of_them_a_day(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sampled test in such a file, a third of its remaining samples runs."""
    items: list[pytest.Item] = []
    for name, count in (("test_one", 1), ("test_many", 20), ("test_sampled", 16)):
        for n in range(count):
            item = pytest.Function.from_parent(
                request.node.parent, name=f"{name}[{n}]", callobj=lambda: None
            )
            item.add_marker("turns")
            if name == "test_sampled":
                item.add_marker("sampled")
            items.append(item)
    met = set()
    for day in range(DAYS):
        monkeypatch.setenv(DAY_VARIABLE, str(day))
        stay = set(items) - set(left_out(items))
        assert 7 <= len(stay) <= 8  # of 23
        met |= stay
    assert met == set(items)
