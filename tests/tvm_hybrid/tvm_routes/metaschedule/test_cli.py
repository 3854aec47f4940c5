"""`tvm-hybrid records export | import`: output, exit codes, and the round trip."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tvm_hybrid.cli import main
from tvm_hybrid.records.record_store import RecordStore

from .regions import batch_matmul, host_machine, matmul, record_of
from .test_import import foreign_database, stored


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    exit_code: int
    output: str


Run = Callable[..., Result]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command of `tvm-hybrid records`."""

    def invoke(*arguments: object) -> Result:
        code = main(["records", *map(str, arguments)])
        captured = capfd.readouterr()
        return Result(code, captured.out + captured.err)

    return invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Records of two regions, one of which no schedule expresses."""
    good, thin = batch_matmul(2, 16, 32, 32), matmul(1, 64, 64)
    stored(tmp_path / "records.jsonl", record_of(good), record_of(thin))
    return tmp_path / "records.jsonl"


def test_there_and_back(run: Run, file: Path, tmp_path: Path) -> None:
    folder, back = tmp_path / "database", tmp_path / "back.jsonl"
    written = run("export", file, folder, "--format", "metaschedule")
    assert written.exit_code == 0, written.output
    assert "1 regions written as 2 programs, 0 known already, 1 left out" in written.output
    assert f"left out: {matmul(1, 64, 64).key}: tiles of 1 rows" in written.output
    read = run("import", folder, back)
    assert read.exit_code == 0, read.output
    assert "1 records added, 0 of them foreign, 0 known already, 0 left out" in read.output
    first, *_ = RecordStore(file)
    (second,) = RecordStore(back)
    assert second.record == first.record


def test_json_says_the_same(run: Run, file: Path, tmp_path: Path) -> None:
    result = json.loads(run("export", file, tmp_path / "database", "--json").output)
    assert result["taken"] == [batch_matmul(2, 16, 32, 32).key]
    assert [entry["what"] for entry in result["left_out"]] == [matmul(1, 64, 64).key]
    back = run("import", tmp_path / "database", tmp_path / "back.jsonl", "--json")
    assert json.loads(back.output)["taken"] == result["taken"]


def test_traces_of_others_are_listed(run: Run, file: Path, tmp_path: Path) -> None:
    region = matmul(32, 64, 96)
    folder = foreign_database(tmp_path / "foreign", region, [2e-6, 3e-6])
    read = run("import", folder, file)
    assert "1 records added, 1 of them foreign" in read.output
    listed = run("list", file)
    assert f"{region.key}: 1 traces, best 2.50 us on znver4; kept, never chosen" in listed.output


def test_machines_are_chosen_by_options(run: Run, file: Path, tmp_path: Path) -> None:
    stored(file, record_of(batch_matmul(2, 16, 32, 32), host_machine(2)))
    both = run("export", file, tmp_path / "database")
    assert both.exit_code == 2 and "choose by machine and threads" in both.output
    one = run("export", file, tmp_path / "database", "--threads", 1)
    assert "1 regions written" in one.output
    none = run("export", file, tmp_path / "other", "--machine", "nosuch")
    assert none.exit_code == 0 and "0 regions written" in none.output


def test_a_missing_database_is_bad_input(run: Run, tmp_path: Path) -> None:
    result = run("import", tmp_path, tmp_path / "records.jsonl")
    assert result.exit_code == 2 and "cannot read" in result.output


def test_a_model_says_which_programs_are_wanted(run: Run, file: Path, tmp_path: Path) -> None:
    element = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        "products",
        [
            helper.make_tensor_value_info("x", element, (2, 16, 32)),
            helper.make_tensor_value_info("w", element, (2, 32, 32)),
        ],
        [helper.make_tensor_value_info("y", element, (2, 16, 32))],
    )
    model = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), model)
    written = run("export", file, tmp_path / "database", "--model", model)
    # The record's own region has no tanh; the model's program has an equal product.
    assert "2 regions written as 4 programs" in written.output
    read = run("import", tmp_path / "database", tmp_path / "back.jsonl", "--model", model)
    assert "1 records added, 0 of them foreign" in read.output
