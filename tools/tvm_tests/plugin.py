"""A plugin of pytest that writes the outcome of every test to a file that survives a crash.

Environment: `TVM_TESTS_NOTES` is the file; `TVM_TESTS_OURS=1` puts our pipeline in place;
`TVM_TESTS_DONE` is a file with names of tests to leave out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .runs import Builds

LONGEST = 200  # most characters of an error
builds = Builds()
if os.environ.get("TVM_TESTS_OURS") == "1":
    from .ours import leave_operators, replace_default_pipeline

    replace_default_pipeline(builds)
    leave_operators()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out tests that an earlier process has run."""
    done = set(Path(os.environ["TVM_TESTS_DONE"]).read_text().splitlines())
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Notes a file that cannot be imported, which counts as a test."""
    if report.failed or report.skipped:
        _note(report.nodeid, report.outcome, report.longrepr)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Notes the test, because it may end the process."""
    builds.modules = builds.regions = 0
    _write({"test": nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes how a test ended: by its call, or by a fixture that failed."""
    if report.when == "call" or not report.passed:
        _note(report.nodeid, report.outcome, report.longrepr)


def _note(test: str, outcome: str, cause: Any) -> None:
    _write(
        {
            "test": test,
            "outcome": outcome,
            "error": "" if outcome == "passed" else _line(cause),
            "modules": builds.modules,
            "regions": builds.regions,
        }
    )


def _line(cause: Any) -> str:
    """An error in one line: an exception's message, or the end of another text."""
    crash = getattr(cause, "reprcrash", None)
    if crash is not None:
        return " ".join(str(crash.message).split())[:LONGEST]
    text = cause[-1] if isinstance(cause, tuple) else cause  # path, line, reason of a skip
    lines = [line for line in str(text).splitlines() if line.strip()]
    return lines[-1][:LONGEST] if lines else ""


def _write(entry: dict[str, Any]) -> None:
    with Path(os.environ["TVM_TESTS_NOTES"]).open("a") as file:
        file.write(json.dumps(entry) + "\n")
