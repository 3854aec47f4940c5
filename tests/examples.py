"""How many examples Hypothesis draws, and which of many similar cases run today.

`make test` runs a fraction of a test's cases, of a template test's instruction sets, and of a
sampled test's sets of parameters. The fraction changes every day. Within `DAYS` days each
combination runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

from hypothesis import settings

T = TypeVar("T")

EVERY_CASE, EVERY_ISA, EVERY_SAMPLE = 3, 3, 8
DAYS = EVERY_CASE * EVERY_ISA * EVERY_SAMPLE

DAY_VARIABLE = "TVM_HYBRID_TEST_DAY"
_FEW = "TVM_HYBRID_ALL_TESTS" not in os.environ


class Turns(NamedTuple):
    """The turns of cases, instruction sets and samples, each counted from 0."""

    case: int
    isa: int
    sample: int


def today() -> int:
    """The day's number below `DAYS`: the environment variable's value, or from the UTC date."""
    given = os.environ.get(DAY_VARIABLE)
    if given is None:
        return datetime.now(timezone.utc).toordinal() % DAYS
    if not given.isdecimal():
        raise ValueError(f"{DAY_VARIABLE}={given!r} is not a number; give one from 0 to {DAYS - 1}")
    return int(given) % DAYS


def turns_of(day: int) -> Turns:
    """The turns of a day; `DAYS` consecutive days have all combinations of turns.

    All three change from day to day. If the instruction set were a remainder of the day, like the
    case, it would always meet an equal third of the cases.
    """
    return Turns(
        case=day % EVERY_CASE, isa=(day + day // EVERY_CASE) % EVERY_ISA, sample=day % EVERY_SAMPLE
    )


def in_turn(count: int, every: int, turn: int) -> range:
    """Every `every`-th number below `count`, but at least one number.

    `every` consecutive turns together have all numbers.
    """
    step = min(every, count)
    return range(turn % step, count, step) if step else range(0)


def examples(count: int, **options: Any) -> settings:
    """Draws this number of examples in `make test-all`, a fifth of it in `make test`."""
    return settings(max_examples=-(-count // 5) if _FEW else count, **options)


def some(cases: Sequence[T]) -> list[T]:
    """All cases in `make test-all`; every third one and the last in `make test`.

    For cases that each compile something.
    """
    if not _FEW:
        return list(cases)
    numbers = in_turn(len(cases) - 1, EVERY_CASE, turns_of(today()).case)
    return [*(cases[n] for n in numbers), cases[-1]]
