"""Placeholders compute and decide as numbers do, and know what other numbers would have given."""

from __future__ import annotations

import math

import pytest
from tvm import tirx

from microkernels.vector.expressions import constant
from microkernels.vector.placeholders import (
    Placeholder,
    Reading,
    Trace,
    applied,
    as_integer,
    as_real,
    number_of,
    unpacked,
)


def test_what_is_computed_is_known_for_other_numbers() -> None:
    trace = Trace((3.0, 2))
    a, b = trace.placeholders()
    found = [a + b, 1 - a, a * 2, 1 / a, -b, abs(-a), as_integer(a / b), as_real(b)]
    assert all(isinstance(each, Placeholder) for each in found)
    assert [each.value for each in found] == [5.0, -2.0, 6.0, 1 / 3.0, -2, 3.0, 1, 2.0]
    read = Reading((8.0, 5))
    assert [read(each) for each in found] == [13.0, -7.0, 16.0, 0.125, -5, 8.0, 1, 5.0]
    assert trace.conditions == {}
    assert trace.holds((math.nan, 7))


def test_decisions_are_conditions() -> None:
    trace = Trace((3.0, 0))
    a, b = trace.placeholders()
    assert a > 2
    assert not b
    assert trace.holds((2.5, 0))
    assert not trace.holds((1.5, 0))
    assert not trace.holds((3.0, 1))
    assert not trace.holds((math.nan, 0))


def test_whoever_wants_a_number_gets_it_but_no_other() -> None:
    trace = Trace((3.0,))
    (a,) = trace.placeholders()
    assert math.sqrt(a * 3) == 3.0
    assert trace.holds((3.0,))
    assert not trace.holds((4.0,))


def test_zeros_of_either_sign_are_two_numbers() -> None:
    trace = Trace((0.0,))
    (a,) = trace.placeholders()
    assert str(a) == "0.0"
    assert not trace.holds((-0.0,))


def test_a_function_that_fails_for_other_numbers_does_not_hold() -> None:
    trace = Trace((1.0,))
    (a,) = trace.placeholders()
    assert 1 / a == 1
    assert not trace.holds((0.0,))


def test_a_function_may_have_no_result() -> None:
    def halves(number: int) -> tuple[int, int] | None:
        return None if number % 2 else (number // 2, number // 2)

    assert unpacked(halves(3)) is None
    assert unpacked(halves(4)) == (2, 2)
    trace = Trace((4,))
    (a,) = trace.placeholders()
    found = unpacked(applied(halves, a))
    assert found is not None
    assert [each.value for each in found] == [2, 2]
    assert trace.holds((6,))
    assert not trace.holds((5,))


def test_emitted_numbers_are_recognised() -> None:
    trace = Trace((3.0,))
    (a,) = trace.placeholders()
    vector = constant(a * 2, "float32", 8)
    assert isinstance(vector, tirx.Broadcast)
    number = number_of(vector.value)
    assert number is not None
    assert trace.numbers[number].value == 6.0
    assert number_of(tirx.call_pure_extern("float32", "sinf", tirx.const(1.0, "float32"))) is None


@pytest.mark.parametrize("question", [hash, repr, int, float])
def test_each_way_to_get_the_number_is_a_condition(question: object) -> None:
    trace = Trace((3,))
    (a,) = trace.placeholders()
    assert callable(question)
    assert question(a) == question(3)
    assert not trace.holds((4,))
