"""Arrangement problems of contractions: keys and choices."""

from __future__ import annotations

from tir_schedules.core.size import SymbolicSize
from tir_schedules.tensorize.arrangement import (
    ArrangementChoice,
    ArrangementProblem,
    Contraction,
    arrangements,
)

F = "float32"


def problem(
    text: str, constants: tuple[bool, bool] = (False, False), **extents: int
) -> ArrangementProblem:
    left, right, out = text.replace("->", ",").split(",")
    given = Contraction(tuple(left), tuple(right), tuple(out), extents)
    return ArrangementProblem(given, (F, F, F), constants, tuple(arrangements(given, constants)))


def test_names_make_no_difference() -> None:
    first = problem("kmi,knj->mnij", k=64, m=16, i=8, n=4, j=2)
    second = problem("abc,ade->bdce", a=64, b=16, c=8, d=4, e=2)
    assert first.key == second.key
    assert first.key == "abc,ade->bdce a64 b16 c8 d4 e2 float32 float32 float32"
    assert [*map(first.choice, first.candidates)] == [*map(second.choice, second.candidates)]


def test_what_makes_a_difference() -> None:
    keys = {
        problem("ik,kj->ij", i=8, k=16, j=32).key,
        problem("ik,kj->ij", i=8, k=16, j=64).key,
        problem("ik,kj->ji", i=8, k=16, j=32).key,
        problem("ik,kj->ij", (False, True), i=8, k=16, j=32).key,
    }
    assert len(keys) == 4


def test_choices_tell_candidates_apart() -> None:
    given = problem("kmi,knj->mnij", k=64, m=16, i=8, n=4, j=2)
    choices = [given.choice(each) for each in given.candidates]
    assert len(set(choices)) == len(given.candidates) > 1
    assert ArrangementChoice(False, "", "bc", "de", "a") in choices
    last = given.candidates[-1]
    ordered = given.best_first(given.choice(last))
    assert ordered[0] is last and {*map(id, ordered)} == {*map(id, given.candidates)}
    assert not given.best_first(ArrangementChoice(False, "a", "bc", "de", ""))


def test_dynamic_sizes_have_no_choice() -> None:
    assert problem("ik,kj->ij", i=8, k=16, j=32).has_choice
    assert not problem("ik,kj->ij", i=SymbolicSize.of("n"), k=16, j=32).has_choice
