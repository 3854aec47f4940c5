"""What is compiled for a machine depends on whether its numbers are guessed or measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from microkernels.isa import isa_named
from microkernels.machines.description import BASE, Description, describe, read_description
from microkernels.machines.guesses import WEIGHED, plausible
from microkernels.machines.machine import Machine
from relay_passes.lower.lower_regions import choose
from tests.tir_schedules.conv_regions import conv_region
from tir_schedules.convolution.winograd import config
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

SQUARE = conv_region((32, 32), 48, 48, (3, 3), padding=(1, 1, 1, 1), op="conv2d_winograd")


def machine(tmp_path: Path, kind: str) -> Machine:
    """A machine by a user's description with the base's numbers, each of this kind."""
    stated = {name: describe(BASE).numbers[name].value for name in WEIGHED}
    numbers = {name: {"value": v, "kind": kind, "source": "a test"} for name, v in stated.items()}
    path = tmp_path / f"{kind}.json"
    path.write_text(json.dumps({"title": "mine", "inherits": BASE, "numbers": numbers}))
    return Machine("x86-64", isa_named("avx512"), 2, read_description(path))


def known(unknown: Machine) -> Description:
    """The description with all of its numbers as measured ones."""
    values = {name: unknown.description.numbers[name].value for name in WEIGHED}
    return unknown.description.with_numbers(values, "measured", "a test")


def test_measured_numbers_narrow_the_candidates_to_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Machine] = []
    formula = config.candidates

    def counted(region: Region, machine: Machine) -> object:
        asked.append(machine)
        return formula(region, machine)

    monkeypatch.setattr(config, "candidates", counted)
    measured, guessed = machine(tmp_path, "measured"), machine(tmp_path, "guess")
    chosen, source = choose(SQUARE, measured, None)
    assert source == "default" and asked == [measured]
    assert template_for(SQUARE.op).estimate(SQUARE, chosen, measured) == min(
        template_for(SQUARE.op).estimate(SQUARE, each, measured)
        for each in formula(SQUARE, measured)
    )
    asked.clear()
    choose(SQUARE, guessed, None)
    assert len(asked) == 3 and asked[0] == guessed


def test_what_is_compiled_on_guesses_loses_least_at_worst(tmp_path: Path) -> None:
    """The best blocks by the guess alone do not fit L2 if it is smaller."""
    measured, guessed = machine(tmp_path, "measured"), machine(tmp_path, "guess")
    estimate, machines = template_for(SQUARE.op).estimate, plausible(guessed)
    best = [choose(SQUARE, replace(each, description=known(each)), None)[0] for each in machines]

    def worst(chosen: Config) -> float:
        return max(
            estimate(SQUARE, chosen, each) / estimate(SQUARE, mine, each)
            for each, mine in zip(machines, best, strict=True)
        )

    chosen, by_guess = (choose(SQUARE, each, None)[0] for each in (guessed, measured))
    assert worst(chosen) < worst(by_guess) - 0.01


def test_guessed_numbers_change_what_is_compiled(tmp_path: Path) -> None:
    measured, guessed = machine(tmp_path, "measured"), machine(tmp_path, "guess")
    assert choose(SQUARE, measured, None)[0] != choose(SQUARE, guessed, None)[0]


def test_a_record_goes_before_all_guesses(tmp_path: Path) -> None:
    guessed = machine(tmp_path, "guess")
    default = template_for(SQUARE.op).default_config(SQUARE, guessed)
    found = choose(SQUARE, guessed, lambda _region, _machine: (default, "record r.jsonl:1"))
    assert found == (default, "record r.jsonl:1")
