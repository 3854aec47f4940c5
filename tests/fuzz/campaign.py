"""Runs many cases one after the other: counts outcomes, shrinks findings and writes them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from .case import Case
from .drawing import UnsuitableError
from .examine import Outcome, State
from .generate import generate
from .motifs import TURNS
from .shrinking import shrink, text_of
from .worker import Worker

# Graphs between two writings of the report, so that an interrupted run leaves a recent one.
_EVERY = 20
# Shrinking a few findings shows what is wrong; later ones are only written and counted.
_MOST_SHRUNK = 25


class Campaign:
    """Runs cases, and counts how they end.

    Parameters
    ----------
    kinds : sequence of str
        Families of graphs.
    folder : Path
        Receives each finding: a model and a text.
    """

    def __init__(self, kinds: Sequence[str], folder: Path) -> None:
        self._kinds = kinds
        self._turns = [kind for kind in TURNS if kind in kinds]
        self._folder = folder
        self.counts: Counter[tuple[str, State]] = Counter()
        self.reasons: Counter[str] = Counter()
        self.findings: list[str] = []
        self._checks = 0
        self._seconds = 0.0

    def run(self, seed: int, is_over: Callable[[], bool], graphs: int = 0) -> None:
        """Examines cases, one seed after the other, until `is_over` or up to a number of graphs."""
        began = time.monotonic()
        with Worker() as worker:
            done = 0
            while not is_over() and (not graphs or done < graphs):
                self._one(self._turns[done % len(self._turns)], seed + done, worker)
                done += 1
                self._seconds = time.monotonic() - began
                if done % _EVERY == 0:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    (self._folder / "report.txt").write_text(self.report() + "\n")

    def _one(self, kind: str, seed: int, worker: Worker) -> None:
        try:
            case = generate(kind, seed)
        except UnsuitableError:
            return
        outcome = worker.examine(case)
        self.counts[kind, outcome.state] += 1
        self._checks += outcome.checks
        if outcome.state.is_finding:
            self._found(case, outcome, worker)
        elif outcome.state != State.OK:
            self.reasons[f"{outcome.state.value}: {_reason(outcome.message)}"] += 1
            if outcome.state == State.DOUBTFUL:
                self._write(case, outcome)

    def _found(self, case: Case, outcome: Outcome, worker: Worker) -> None:
        """Writes a finding as it was drawn, and then its shrunk case."""
        text = f"{outcome.state.value}: {_reason(outcome.message)}"
        self.findings.append(f"{case.origin}: {text}")
        print(self.findings[-1], flush=True)
        self._write(case, outcome)
        if len(self.findings) <= _MOST_SHRUNK:
            small = shrink(case, outcome, worker.examine)
            self._write(small, worker.examine(small))

    def _write(self, case: Case, outcome: Outcome) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{case.origin.replace('/', '_')}.onnx"
        case.save(path)
        text = f"{outcome.state.value}: {outcome.message}\n{text_of(case)}\n"
        path.with_suffix(".txt").write_text(text)

    def report(self) -> str:
        """Counts by kind and state, the reasons of refusals, and the findings."""
        total = sum(self.counts.values())
        lines = [f"{'kind':<12}" + "".join(f"{state.value:>10}" for state in State)]
        for kind in self._kinds:
            numbers = [self.counts[kind, state] for state in State]
            lines.append(f"{kind:<12}" + "".join(f"{number:>10}" for number in numbers))
        minutes = max(self._seconds, 1e-9) / 60
        lines.append(f"{total} graphs, {total / minutes:.0f} a minute, {self._checks} more checks")
        lines.extend(f"{count:>5}  {reason}" for reason, count in self.reasons.most_common())
        lines.extend(self.findings)
        return "\n".join(lines)


def _reason(message: str) -> str:
    """The message's first line, without names of values."""
    return message.strip().splitlines()[0][:300] if message.strip() else ""
