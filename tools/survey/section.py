"""A section of a survey: its cases, and how they are measured within its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from .store import Result, Row


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """How a section is measured.

    Attributes
    ----------
    section : str
        Name of the section.
    threads : int
        Number of threads of every contestant.
    seconds : float
        Time after which no case begins.
    cpus : list of int
        CPUs to run on, one for each thread; empty: all.
    openvino : str
        A Python that has OpenVINO; empty if there is none.
    onednn : str
        The program made from `onednn_peer.cc`; empty if there is none.
    engines : dict
        Engine of language models -> a Python that has it.
    """

    section: str
    threads: int = 1
    seconds: float = 60.0
    cpus: list[int] = []
    openvino: str = ""
    onednn: str = ""
    engines: dict[str, str] = {}


@dataclass(frozen=True)
class Case:
    """A part of a section; `measure` returns its rows."""

    name: str
    measure: Callable[[], Iterable[Row]]


@dataclass(frozen=True)
class Section:
    """A part of the survey.

    Attributes
    ----------
    name : str
        Name on the command line and in the file.
    title : str
        Heading on pages.
    minutes : float
        Minutes of the section in a survey of 40 minutes.
    cases : callable
        Job -> the section's cases, the most important ones first.
    counts : callable
        Largest number of threads -> numbers of threads to measure.
    """

    name: str
    title: str
    minutes: float
    cases: Callable[[Job], Sequence[Case]]
    counts: Callable[[int], Iterable[int]] = field(default=lambda most: sorted({1, most}))


def one_thread(_most: int) -> Iterable[int]:
    """Numbers of threads of sections that do not depend on it."""
    return (1,)


def all_threads(most: int) -> Iterable[int]:
    """Numbers of threads of sections that measure one thread and several by themselves."""
    return (most,)


def measure_cases(
    cases: Iterable[Case],
    seconds: float,
    report: Callable[[str, Result], object] = lambda case, found: None,
) -> Result:
    """Measures cases in order until `seconds` are over; a failing case is a fault, not the end.

    `report` is called with each case and its result as soon as that is known.
    """
    start, whole = time.monotonic(), Result()
    for case in cases:
        found = Result()
        if time.monotonic() - start > seconds:
            found.left_out.append(case.name)
        else:
            try:
                found.rows += case.measure()
            except Exception as error:  # whatever a library raises is this case's result
                lines = str(error).strip().splitlines() or [""]
                found.faults[case.name] = f"{type(error).__name__}: {lines[-1][:300]}"
        report(case.name, found)
        whole = together([whole, found])
    whole.seconds = round(time.monotonic() - start, 1)
    return whole


def together(results: Sequence[Result]) -> Result:
    """Joins the results of several parts of a section."""
    return Result(
        rows=[row for each in results for row in each.rows],
        seconds=round(sum(each.seconds for each in results), 1),
        faults={case: why for each in results for case, why in each.faults.items()},
        left_out=[case for each in results for case in each.left_out],
    )
