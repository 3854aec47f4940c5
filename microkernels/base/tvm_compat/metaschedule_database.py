"""Reads a folder of MetaSchedule's JSON database, and skips damaged lines.

    database_workload.json          [hash, base64 of a module]
    database_tuning_record.json     [number of the workload's line, [[instructions, decisions],
                                     seconds of every run, target, arguments]]

One JSON value on a line. TVM's own reader gives up at the first torn line; this one skips it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import IRModule, ir
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import Workload

from microkernels.base.errors import RecordError

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
ANNOTATION = "tvm_hybrid.record"
FAILED = 1e9  # seconds; TVM writes 1e10 for what could not be run
_LENGTH = 8  # bytes of a length before a workload's JSON


@dataclass(frozen=True)
class Entry:
    """One record of a database.

    Attributes
    ----------
    place : str
        FILE:LINE.
    workload : int
        Number of its program's line, from 0.
    instructions, decisions : list
        The trace, as JSON.
    seconds : tuple of float
        Seconds of every run; empty if no run worked.
    target : dict
        TVM's target.
    arguments : list
        Types and shapes of the program's parameters, as JSON.
    """

    place: str
    workload: int
    instructions: list[Any]
    decisions: list[Any]
    seconds: tuple[float, ...]
    target: dict[str, Any]
    arguments: list[Any]

    @property
    def note(self) -> str | None:
        """The record that `export` added to the trace, as JSON; None in a foreign trace."""
        for instruction in self.instructions:
            kind, inputs, attributes, *_ = instruction
            if kind == "Annotate" and attributes == [ANNOTATION] and len(inputs) == 2:
                text = str(inputs[1])
                return text[1:-1] if text[:1] == text[-1:] == '"' else text
        return None

    @property
    def key(self) -> str:
        """Equal for equal traces with equal times, to nine digits: units are converted."""
        times = [f"{seconds:.9g}" for seconds in self.seconds]
        return json.dumps([self.instructions, self.decisions, times])

    @property
    def intrinsics(self) -> list[str]:
        """Names of the tensor intrinsics that the trace asks for."""
        return [
            str(attributes[0])
            for kind, _inputs, attributes, *_ in self.instructions
            if kind == "Tensorize" and attributes
        ]


class MetaScheduleFolder:
    """A database's two files.

    Parameters
    ----------
    path : Path
        The folder.

    Attributes
    ----------
    hashes : dict
        Number of a workload's line -> its hash.
    entries : list of Entry
        The readable records.
    problems : list of str
        One sentence for every unreadable line.

    Raises
    ------
    RecordError
        If there is no such database, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hashes: dict[int, str] = {}
        self.entries: list[Entry] = []
        self.problems: list[str] = []
        self._encoded: dict[int, Any] = {}
        for number, place, value in self._lines(WORKLOADS):
            if isinstance(value, list) and len(value) == 2:
                self._encoded[number] = value
                self.hashes[number] = str(value[0])
            else:
                self.problems.append(f"{place}: not a workload")
        for _, place, value in self._lines(RECORDS):
            try:
                self.entries.append(_entry(place, value))
            except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
                self.problems.append(f"{place}: not a tuning record: {error}")

    def program(self, entry: Entry) -> IRModule:
        """The program that an entry is about.

        Raises
        ------
        RecordError
            If its line is missing, damaged or that of another program.
        """
        encoded = self._encoded.get(entry.workload)
        if encoded is None:
            raise RecordError(f"{entry.place}: there is no workload {entry.workload}")
        place = f"{self.path / WORKLOADS}:{entry.workload + 1}"
        _check_encoded(place, encoded[1])
        try:
            program = Workload.from_json([str(encoded[0]), encoded[1]]).mod
            arguments = [info.as_json() for info in ArgInfo.from_prim_func(program["main"])]
        except Exception as error:  # whatever TVM throws at a foreign module
            reason = (str(error).strip().splitlines() or [""])[-1]
            raise RecordError(f"{place}: TVM cannot read it: {reason}") from error
        if arguments != entry.arguments:
            raise RecordError(f"{entry.place}: its arguments are not those of {place}")
        return program

    def _lines(self, name: str) -> Iterator[tuple[int, str, Any]]:
        path = self.path / name
        try:
            text = path.read_bytes()
        except OSError as error:
            raise RecordError(f"cannot read {path}: {error.strerror}") from error
        for number, line in enumerate(text.split(b"\n")):
            if not line.strip():
                continue
            place = f"{path}:{number + 1}"
            try:
                yield number, place, json.loads(line)
            except (ValueError, RecursionError) as error:
                self.problems.append(f"{place}: not a whole line of JSON: {error}")


def _entry(place: str, value: Any) -> Entry:
    workload, [[instructions, decisions], seconds, target, arguments] = value
    if not isinstance(workload, int):
        raise TypeError(f"the workload {workload!r}")
    for instruction in instructions:
        kind, inputs, attributes, outputs = instruction
        if not isinstance(kind, str) or {*map(type, (inputs, attributes, outputs))} != {list}:
            raise TypeError(f"the instruction {str(instruction)[:80]}")
    times = tuple(float(time) for time in seconds or ())
    worked = all(0 < time < FAILED for time in times)
    trace = list(instructions), list(decisions)
    return Entry(place, workload, *trace, times if worked else (), dict(target), list(arguments))


def _check_encoded(place: str, text: Any) -> None:
    """Refuses a damaged workload, as TVM trusts its lengths and numbers of nodes.

    Raises
    ------
    RecordError
        If the workload is damaged.
    """
    try:
        raw = base64.b64decode(text, validate=True)
        length, body = int.from_bytes(raw[:_LENGTH], "little"), raw[_LENGTH:]
        graph = json.loads(body)
        whole = length == len(body) and 0 <= graph["root_index"] < len(graph["nodes"])
    except (binascii.Error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordError(f"{place}: a damaged workload: {error}") from error
    if not whole:
        raise RecordError(f"{place}: a damaged workload: not whole")


IS_SCHEDULED = "tirx.is_scheduled"
"""An attribute of programs that dlight and MetaScheduleApplyDatabase leave as they are."""

LEFT_ALONE = ("schedule_rule", "None")
"""An annotation of blocks, and its value, that MetaSchedule's rules leave as they are."""


def makes_a_program(op: ir.Op) -> bool:
    """Whether LegalizeOps makes a program of a Relax operator."""
    return op.get_attr("FLegalize") is not None
