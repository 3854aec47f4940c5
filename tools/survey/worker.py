"""Measures a section in its own process, which may crash or hang without harm to the survey.

    python -m tools.survey.worker PARENT_PID JOB

It runs on the job's CPUs, and prints a line of JSON for each case and one at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import msgspec

from tvm_hybrid.tuning.measuring.child_process import Answers, ChildProcess, die_with

from .section import Job, measure_cases, together
from .store import Result

GRACE = 120.0
"""Seconds that the last case may take after the time is over."""


class Answer(msgspec.Struct):
    """The result of one case; `done` marks the last answer, which has no case."""

    case: str = ""
    found: Result = msgspec.field(default_factory=Result)
    done: bool = False


def measured(job: Job, report: Callable[[str, Result], object]) -> Result:
    """Measures a section in a worker, and calls `report` with each case and its result."""
    threads = {name: str(job.threads) for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS")}
    encoded = msgspec.json.encode(job).decode()
    child = ChildProcess.of_module("tools.survey.worker", [encoded], threads)
    results, start, fault = [], time.monotonic(), ""
    child.spawn()
    try:
        while True:
            left = job.seconds + GRACE - (time.monotonic() - start)
            line = child.answer(max(left, 1.0))
            if line is None:
                fault = f"the process {child.ended()[1]}"
                break
            answer = msgspec.json.decode(line, type=Answer)
            if answer.done:
                break
            results.append(answer.found)
            report(answer.case, answer.found)
    except TimeoutError:
        fault = f"not done {GRACE:.0f} s after its time was over"
    finally:
        child.close()
    whole = together(results)
    whole.seconds = round(time.monotonic() - start, 1)
    if fault:
        where = f", behind case {len(results)}" if results else ""
        whole.faults[""] = fault + where
    return whole


def main() -> None:
    """Runs the job of the parent process."""
    die_with(int(sys.argv[1]))
    job = msgspec.json.decode(sys.argv[2], type=Job)
    if job.cpus:
        os.sched_setaffinity(0, job.cpus)  # before TVM counts the CPUs
    answers = Answers()
    from .sections import SECTIONS

    cases = SECTIONS[job.section].cases(job)
    measure_cases(cases, job.seconds, lambda case, found: answers(Answer(case, found)))
    answers(Answer(done=True))


if __name__ == "__main__":
    main()
