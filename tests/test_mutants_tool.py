"""`tools.mutants`: its mutations fit the sources, and it tells killed from survived ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.mutants.__main__ import ROOT, main
from tools.mutants.runs import MutationError, load

SOURCE = "def larger(a, b):\n    return a if a > b else b\n"
TESTS = """
import os, time
from toy import larger
def test_larger():
    assert larger(2, 1) == 2 and larger(1, 2) == 2
def test_ends():
    if larger(1, 1) is None: os.abort()
    if larger(1, 1) == 9: time.sleep(1000)
"""


def toy(name: str, old: str, new: str, *tests: str, equivalent: str = "") -> dict[str, object]:
    return {
        "name": name,
        "file": "toy.py",
        "old": old,
        "new": new,
        "why": "a toy",
        "tests": tests or ("test_toy.py",),
        "equivalent": equivalent,
    }


MUTATIONS = [
    toy("smaller", "a > b", "a < b"),
    toy("crash", "a if a > b", "a if a > b else None if a == b", "test_toy.py::test_ends"),
    toy("not-called", "a > b", "a < b", "test_toy.py::test_ends"),
    toy("old", "a >= b", "a < b"),
    toy("twice", "b", "a"),
    toy("endless", "a if a > b", "a if a > b else 9 if a == b", "test_toy.py::test_ends"),
    toy("no-tests", "a > b", "a < b", "test_other.py"),
    toy("same", "a > b", "a >= b", equivalent="both are the same then"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "lists").mkdir(parents=True)
    (root / "toy.py").write_text(SOURCE)
    (root / "test_toy.py").write_text(TESTS)
    (root / "lists" / "toy.json").write_text(json.dumps(MUTATIONS))
    return root


def run(project: Path, *arguments: str) -> tuple[int, dict[str, list[str]], str]:
    """The exit code, the table's rows by name, and the whole output."""
    folders = ["--root", str(project), "--mutations", str(project / "lists")]
    result = CliRunner().invoke(main, [*folders, *arguments], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
    return result.exit_code, {row[0]: row[1:] for row in rows}, result.output


def test_killed_survived_and_the_rest(project: Path) -> None:
    code, rows, output = run(project, "--timeout", "20", "[!e]*", "--jobs", "2")
    assert code == 1
    assert rows["smaller"][0] == "killed" and rows["smaller"][-1] == "test_toy.py::test_larger"
    assert rows["crash"][0] == "killed" and "ended with -6" in output
    assert rows["not-called"][0] == rows["same"][0] == "survived"
    assert rows["old"][:3] == rows["twice"][:3] == ["does", "not", "apply"]
    assert "the text to replace 0 times, not once: 'a >= b'" in output
    assert rows["no-tests"][0] == "broken" and "test_other.py" in output
    assert (project / "toy.py").read_text() == SOURCE
    assert not list(project.rglob("__pycache__"))


def test_a_timeout_decides_nothing(project: Path) -> None:
    code, rows, _ = run(project, "--timeout", "5", "endless")
    assert (code, rows["endless"][0]) == (1, "timeout")


def test_all_killed_is_success(project: Path) -> None:
    """Equivalent mutations run only if they are named."""
    lists = project / "lists" / "toy.json"
    lists.write_text(json.dumps([MUTATIONS[0], MUTATIONS[-1]]))
    code, rows, _ = run(project)
    assert code == 0 and "smaller" in rows and "same" not in rows
    code, rows, _ = run(project, "--list")
    assert code == 0 and rows["same"][1] == "equivalent:" and rows["smaller"][-2:] == ["a", "toy"]


def test_bad_names_and_lists(project: Path) -> None:
    code, _, output = run(project, "nonesuch")
    assert code == 2 and "no mutation is named nonesuch" in output
    lists = project / "lists" / "toy.json"
    lists.write_text(json.dumps([MUTATIONS[0], MUTATIONS[0]]))
    with pytest.raises(MutationError, match="share a name: smaller"):
        load(lists.parent)
    lists.write_text(json.dumps([{**MUTATIONS[0], "test": "a.py"}]))
    with pytest.raises(MutationError, match="unknown field `test`"):
        load(lists.parent)


def test_every_mutation_fits_the_sources() -> None:
    """A changed source needs its mutations changed too."""
    mutations = load()
    assert mutations
    for each in mutations:
        mutated = each.applied((ROOT / each.file).read_text(encoding="utf-8"))
        compile(mutated, each.file, "exec")
        assert each.why and each.tests, each.name
        for test in each.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).is_file(), f"{each.name}: there is no {path}"
            function = name.split("::")[-1].split("[")[0]
            text = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {function}(" in text or not name, f"{each.name}: {path} has no {name}"
