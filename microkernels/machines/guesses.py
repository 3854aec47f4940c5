"""Decides under numbers of a description that nobody knows for the CPU.

The CPU may be better or worse by a factor of two than a number that is guessed for no certain CPU,
as the description of any x86-64 does. What is best by the guess alone may be bad if it is wrong.
So candidates come from each of the values, and the one is taken that loses least at worst:

    candidates      what is best if the CPU is as guessed, or all unknown numbers worse, or better
    loss            cost of a candidate by some values, over the least cost by these values
    decided         the candidate with the least greatest loss; the first one if they are alike

A number that is measured or stated for the CPU has one value, and narrows the candidates. So do
guesses that a shipped description makes for a certain CPU: they follow from its data sheet, and by
measured numbers of a Zen 5 three of 230 regions of nine models were configured otherwise.

The template of Winograd convolutions decides so. By the true numbers of four CPUs (Ice Lake,
Emerald Rapids, Zen 3 and 5; 14 regions of nine models), what it chose by the base's guesses took up
to 7% more on two threads and 43% on 16; with these candidates up to 4% and 40%. Other templates
lost 1.2% at most, and would take a tenth of all time to compile ResNet-50 to weigh three CPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from .description import BASE, Curve, Description, described
from .machine import Machine

# What decides about blocks and threads. More of a number is better, but for the time of a fork.
WEIGHED = ("l2_bytes", "l3_bytes", "l2_rate", "l3_rate", "memory_rate", "fork_us")
FACTORS = (0.5, 2.0)
ALIKE = 2  # digits of a loss that count: estimates cannot tell less

T = TypeVar("T")


def unknown_numbers(found: Description) -> list[str]:
    """Numbers of `WEIGHED` that are guessed, but for no certain CPU."""
    own = set(described()) - {BASE}
    return [
        name
        for name in WEIGHED
        if found.numbers[name].kind == "guess" and found.origins[name] not in own
    ]


@functools.lru_cache(64)
def plausible(machine: Machine) -> tuple[Machine, ...]:
    """The machine, then those that it may be instead, for all that is known of it."""
    found = machine.description
    names = unknown_numbers(found)

    def scaled(factor: float) -> Machine:
        values = {
            name: _times(found.numbers[name].value, 1 / factor if name == "fork_us" else factor)
            for name in names
        }
        return replace(machine, description=found.with_numbers(values, "guess", "a range"))

    return (machine, *map(scaled, FACTORS)) if names else (machine,)


def _times(value: float | Curve, factor: float) -> float | Curve:
    if isinstance(value, tuple):
        return tuple((threads, each * factor) for threads, each in value)
    return value * factor


def decided(
    machine: Machine, best: Callable[[Machine], T], cost: Callable[[T, Machine], float]
) -> T:
    """What loses least at worst, whatever the values of unknown numbers are.

    Parameters
    ----------
    machine : Machine
        What is known.
    best : callable
        The best candidate for a machine.
    cost : callable
        Of a candidate on a machine.
    """
    machines = plausible(machine)
    candidates = list(dict.fromkeys(map(best, machines)))
    if len(candidates) == 1:
        return candidates[0]
    costs = [[cost(candidate, each) for candidate in candidates] for each in machines]

    def loss(number: int) -> float:
        return round(max(row[number] / min(row) for row in costs), ALIKE)

    return candidates[min(range(len(candidates)), key=loss)]
