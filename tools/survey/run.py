"""Measures the sections that a survey lacks, within its time, and saves each when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.decoding.environments import cpus_for

from . import worker
from .peers import Peers
from .section import Job, Section, together
from .store import Result, Survey, write

Report = Callable[[str, Result], object]


@dataclass
class Run:
    """A survey that is being measured."""

    survey: Survey  # the results so far
    path: Path  # its file
    peers: Peers  # the other libraries
    sections: Mapping[str, Section]  # all sections, by name
    say: Callable[[str], object]  # gets a line for every case
    measure: Callable[[Job, Report], Result] = worker.measured  # measures a job

    def missing(self) -> list[str]:
        """Sections that were not measured yet, or had no time for some of their cases."""
        found = self.survey.sections
        return [name for name in self.sections if name not in found or found[name].left_out]

    def go(self, names: Iterable[str], seconds: float) -> None:
        """Measures sections within `seconds`; unused time of a section is left to later ones."""
        end = time.monotonic() + seconds
        left = list(names)
        while left:
            section = self.sections[left[0]]
            minutes = sum(self.sections[name].minutes for name in left)
            share = (end - time.monotonic()) * section.minutes / minutes
            self.say(f"{section.title}, {max(share, 0.0):.0f} s")
            self.survey.sections[section.name] = self.measured(section, share)
            write(self.path, self.survey)
            del left[0]

    def measured(self, section: Section, seconds: float) -> Result:
        """Measures a section on each of its numbers of threads."""
        end, counts = time.monotonic() + seconds, list(section.counts(self.survey.threads))
        results = []
        for at, threads in enumerate(counts):
            job = Job(
                section=section.name,
                threads=threads,
                seconds=max(end - time.monotonic(), 0.0) / (len(counts) - at),
                cpus=cpus_for(threads),
                openvino=self.peers.openvino,
                onednn=self.peers.onednn,
                engines=self.peers.engines,
            )
            results.append(self.measure(job, self.tell))
        for threads, found in zip(counts, results, strict=True):
            behind = f", threads: {threads}" if len(counts) > 1 else ""
            found.faults = {(case + behind).removeprefix(", "): why
                            for case, why in found.faults.items()}  # fmt: skip
            found.left_out = [case + behind for case in found.left_out]
            for case, why in found.faults.items():
                self.say(f"  {case or section.name}: {why}")
        return together(results)

    def tell(self, case: str, found: Result) -> None:
        """Prints the result of a case."""
        for row in found.rows:
            values = ", ".join(f"{name} {value:g}" for name, value in row.values.items())
            ratio = f"; {row.ratio:.2f}x" if row.ratio is not None else ""
            dtype = f", {row.dtype}" * bool(row.dtype) + f", {row.threads} threads" * (
                row.threads > 1
            )
            self.say(f"  {row.case}{dtype}: {values} {row.unit}{ratio}")
            for name, why in row.notes.items():
                self.say(f"    {name}: {why}")
        if found.left_out:
            self.say(f"  {case}: no time left")
