"""Chooses between candidates when some numbers of the CPU are only guessed.

The CPU may be better or worse by a factor of two than a guess that holds for no certain CPU, as in
the description of any x86-64. The best candidate by the guess may be bad if the guess is wrong. So
each of the possible values yields a candidate, and the one with the smallest greatest loss wins:

    candidates      the best ones if the CPU is as guessed, worse in all unknown numbers, or better
    loss            cost of a candidate by some values, over the least cost by these values
    decided         the candidate with the smallest greatest loss; the first of equal ones

A number that is measured or stated for the CPU has one value. So has a guess that a shipped
description makes for a certain CPU: it follows from the data sheet, and with measured numbers of a
Zen 5 instead, three of 230 regions of nine models got another configuration.

The template of Winograd convolutions decides this way. By the true numbers of four CPUs (Ice Lake,
Emerald Rapids, Zen 3 and 5; 14 regions of nine models), its choices by the base's guesses took up
to 7% longer on two threads and 43% on 16; with these candidates up to 4% and 40%. Other templates
lost 1.2% at most, and weighing three CPUs would add a tenth to the time to compile ResNet-50.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from .description import BASE, Curve, Description, described
from .machine import Machine

# Numbers that decide about blocks and threads. More is better, except for the time of a fork.
WEIGHED = ("l2_bytes", "l3_bytes", "l2_rate", "l3_rate", "memory_rate", "fork_us")
FACTORS = (0.5, 2.0)
ALIKE = 2  # digits of a loss that count: estimates are no more precise

T = TypeVar("T")


def unknown_numbers(found: Description) -> list[str]:
    """Numbers of `WEIGHED` that are guessed for no certain CPU."""
    own = set(described()) - {BASE}
    return [
        name
        for name in WEIGHED
        if found.numbers[name].kind == "guess" and found.origins[name] not in own
    ]


@functools.lru_cache(64)
def plausible(machine: Machine) -> tuple[Machine, ...]:
    """The machine, then the machines that it may be instead, as far as its numbers are unknown."""
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
    """The candidate with the smallest greatest loss over all plausible machines.

    Parameters
    ----------
    machine : Machine
        The machine as described.
    best : callable
        machine -> its best candidate.
    cost : callable
        (candidate, machine) -> cost.
    """
    machines = plausible(machine)
    candidates = list(dict.fromkeys(map(best, machines)))
    if len(candidates) == 1:
        return candidates[0]
    costs = [[cost(candidate, each) for candidate in candidates] for each in machines]

    def loss(number: int) -> float:
        return round(max(row[number] / min(row) for row in costs), ALIKE)

    return candidates[min(range(len(candidates)), key=loss)]
