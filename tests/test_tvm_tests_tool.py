"""`tools.tvm_tests` compares TVM's pipeline with ours, test by test, in a small checkout."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.tvm_tests import __main__ as command
from tools.tvm_tests.comparison import FAIL, LOST, PASS, Comparison
from tools.tvm_tests.runs import Outcome, run_file

pytestmark = pytest.mark.turns

COMPILING = """
import numpy as np, pytest, tvm
from tvm import relax

LLVM = tvm.target.Target("llvm")

def module():
    x = relax.Var("x", relax.TensorType((8, 16), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        w = relax.const(np.ones((16, 16), "float32"))
        builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
    return builder.get()

def has_kernel_of_stock(executable):
    return "@matmul packed_func" in executable.as_text()

def test_of_results():
    machine = relax.VirtualMachine(tvm.compile(module(), "llvm"), tvm.cpu())
    y = machine["main"](tvm.runtime.tensor(np.ones((8, 16), "float32"))).numpy()
    np.testing.assert_array_equal(y, np.full((8, 16), 16))

@pytest.mark.parametrize("mode", ["bytecode"])
def test_of_kernels(mode):
    assert has_kernel_of_stock(relax.build(module(), LLVM, exec_mode=mode)), "another kernel"

def test_of_its_own_pipeline():
    own = relax.get_pipeline("default")
    assert has_kernel_of_stock(tvm.compile(module(), LLVM, relax_pipeline=own))

def test_that_wants_ours():
    assert not has_kernel_of_stock(relax.build(module(), LLVM))

def test_that_fails():
    tvm.compile(module(), "nonesuch")

@pytest.mark.skip
def test_of_a_gpu():
    assert False
"""

ENDING = """
import os, time

def test_before():
    pass

def test_that_ends_its_process():
    os._exit(3)

def test_that_does_not_end():
    time.sleep(1000)

def test_after():
    assert 1 == 2, "a reason"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "test_compiling.py").write_text(COMPILING)
    (tmp_path / "test_ending.py").write_text(ENDING)
    return tmp_path


def test_tests_are_listed_by_the_pipelines_that_pass_them(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    excluded: dict[str, str] = {}
    monkeypatch.setattr(command, "EXCLUDED", excluded)
    found: list[dict[str, Outcome]] = []

    def run(*arguments: object) -> dict[str, Outcome]:
        outcomes = run_file(*arguments)  # type: ignore[arg-type]
        found.append(outcomes)
        return outcomes

    monkeypatch.setattr(command, "run_file", run)
    report = checkout / "report.md"
    arguments = [str(checkout), "--select", "test_compiling.py", "--report", str(report)]
    done = CliRunner().invoke(command.main, arguments)
    assert done.exit_code == 1
    stock, ours = found
    groups = Comparison(stock, ours, excluded).groups()
    prefix = "test_compiling.py::test_"
    assert {
        title: [name.removeprefix(prefix) for name in names] for title, names in groups.items()
    } == {
        PASS: ["of_results", "of_its_own_pipeline"],
        FAIL: ["that_fails"],
        "skipped": ["of_a_gpu"],
        "pass with ours only": ["that_wants_ours"],
        "excluded": [],
        LOST: ["of_kernels[bytecode]"],
    }
    assert not any(each.modules for each in stock.values())
    counts = {
        name.removeprefix(prefix): (each.modules, each.regions) for name, each in ours.items()
    }
    assert counts["of_results"] == (1, 1)
    assert counts["of_its_own_pipeline"] == counts["of_a_gpu"] == (0, 0)
    text = report.read_text()
    assert text in done.output
    lost = f"- {LOST}: `{prefix}of_kernels[bytecode]`: failed: AssertionError: another kernel"
    assert lost in text
    assert "3 tests compiled 3 modules" in text

    excluded[f"{prefix}of_kernels"] = "it names kernels"
    comparison = Comparison(stock, ours, excluded)
    assert not comparison.lost()
    assert f"- excluded: `{prefix}of_kernels[bytecode]`: it names kernels" in comparison.report()


def test_a_test_that_ends_its_process(checkout: Path) -> None:
    found = run_file(checkout, "test_ending.py", False, timeout=2)
    assert {
        name.partition("::")[2]: (each.outcome, each.error) for name, each in found.items()
    } == {
        "test_before": ("passed", ""),
        "test_that_ends_its_process": ("crashed", "exit code 3"),
        "test_that_does_not_end": ("hung", "no end after 2 s"),
        "test_after": ("failed", "AssertionError: a reason assert 1 == 2"),
    }


def test_a_file_that_cannot_be_imported(checkout: Path) -> None:
    (checkout / "test_wrong.py").write_text("import nonesuch_of_tvm\n")
    ((name, outcome),) = run_file(checkout, "test_wrong.py", False, timeout=60).items()
    assert (name, outcome.outcome) == ("test_wrong.py", "failed")
    assert "nonesuch_of_tvm" in outcome.error


def test_a_folder_that_is_not_a_checkout(tmp_path: Path) -> None:
    done = CliRunner().invoke(command.main, [str(tmp_path)])
    assert done.exit_code == 2
    assert "is it a checkout of TVM?" in done.output
