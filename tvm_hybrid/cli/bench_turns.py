"""Options of `tvm-hybrid bench` that say how long contestants are measured."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from .options import AT_LEAST_ONE, SECONDS

WARMUP = 0.1


@dataclass(frozen=True)
class Turns:
    """What was asked for; None where nothing was.

    Attributes
    ----------
    repeat : int or None
        Turns of each contestant.
    seconds : float or None
        Length of a turn.
    duration : float or None
        Seconds of all turns of a contestant.
    warmup : float
        Seconds that do not count.
    """

    repeat: int | None
    seconds: float | None
    duration: float | None
    warmup: float

    def length(self, default: float) -> float:
        """Seconds of a turn; not more than there are of all."""
        length = default if self.seconds is None else self.seconds
        return length if self.duration is None else min(length, self.duration)

    def rounds(self, default: int, length: float) -> int:
        """How many turns each contestant has, if a turn takes `length` by default."""
        if self.duration is None:
            return self.repeat or default
        return math.ceil(self.duration / self.length(length) - 1e-9)

    def of_layers(self) -> tuple[int | None, float | None]:
        """What `--layers` takes of it.

        Raises
        ------
        click.UsageError
            If more was asked for.
        """
        if self.duration is not None or self.warmup != WARMUP:
            raise click.UsageError("--layers goes with --repeat and --seconds")
        return self.repeat, self.seconds


def turn_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--repeat`, `--seconds`, `--duration` and `--warmup`; the command gets `turns`."""

    @click.option(
        "--repeat",
        show_default="10; for layers 20, for streams 5",
        type=AT_LEAST_ONE,
        help="Turns of each contestant.",
    )
    @click.option(
        "--seconds",
        show_default="0.1; for layers 0.03, for streams 1",
        type=click.FloatRange(min=0),
        help="Length of a turn.",
    )
    @click.option(
        "--duration",
        type=SECONDS,
        help="Seconds that each contestant is measured, with each number of streams, in place of "
        "--repeat.",
    )
    @click.option(
        "--warmup",
        default=WARMUP,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Seconds that each contestant runs before it is measured, after its first run.",
    )
    @functools.wraps(command)
    def with_turns(
        *arguments: Any,
        repeat: int | None,
        seconds: float | None,
        duration: float | None,
        warmup: float,
        **others: Any,
    ) -> Any:
        if duration is not None and repeat is not None:
            raise click.UsageError("--duration and --repeat exclude each other")
        if duration is not None and seconds == 0:
            raise click.UsageError("--duration needs turns that take some --seconds")
        return command(*arguments, turns=Turns(repeat, seconds, duration, warmup), **others)

    return with_turns
