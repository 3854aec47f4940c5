"""`tvm-hybrid tune` and `tvm-hybrid records`, as a user calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_hybrid.cli import main
from tvm_hybrid.records.record_store import RecordStore


@pytest.fixture
def model(tmp_path: Path) -> Path:
    import numpy as np

    weight = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])],
        "one_layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def run(*arguments: object) -> int:
    return main(list(map(str, arguments)))


def test_tune_then_look_at_the_records(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    tune = ["tune", model, "--records", path, "--trials", 2, "--threads", 1, "--dim", "batch=4"]
    tune += ["--strategy", "random", "--min-gain", 0]
    assert run(*tune) == 0
    output = capsys.readouterr()
    assert "matmul(float32[4x16], float32[16x8]c)" in output.out
    assert "ended: all 2 trials are made; records in" in output.out
    # The number of configurations depends on the CPU.
    found = re.search(r"region 1: 1 x, (\d+) configurations, 0 known: matmul", output.err)
    assert found is not None and int(found[1]) > 2
    assert f"trial 2 of 2, region 1 of 1, 2 of {found[1]} configurations, best" in output.err
    count = len(list(RecordStore(path)))
    assert count >= 2

    assert run(*tune, "--json") == 0
    (region,) = json.loads(capsys.readouterr().out)["regions"]
    assert (region["known"], region["measured"]) == (2, 0)
    assert region["speedup"] > 0 and region["best"]

    assert run("records", "show", path) == 0
    assert f"{count} records" in capsys.readouterr().out
    assert run("records", "show", path, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == count
    assert run("records", "best", path) == 0
    assert "float32[16x8]c" in capsys.readouterr().out
    assert run("records", "best", path, "--json") == 0
    (best,) = json.loads(capsys.readouterr().out)
    assert best["config"] == region["best"] and best["place"].startswith(f"{path}:")
    assert run("records", "check", path) == 0
    assert f"{count} records, 0 problems" in capsys.readouterr().out

    assert run(*tune, "--replay", path, "--json") == 0
    # Without finals, the faster one in the search.
    (replayed,) = json.loads(capsys.readouterr().out)["regions"]
    assert replayed["tried"] == 2 and replayed["speedup"] >= region["speedup"]


def test_check_names_every_bad_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    assert run("tune", model, "--records", path, "--trials", 1, "--dim", "batch=4") == 0
    fields = json.loads(path.read_text().splitlines()[0])
    changes: list[dict[str, object]] = [
        {"version": 99},
        {"config": {**fields["config"], "colour": "red"}},
        {"config": {**fields["config"], "m_block": -4}},
        {"workload": "matmul of something else"},
        {"isa": "sse9"},
        {"times_us": []},
    ]
    lines = [json.dumps({**fields, **change}) for change in changes]
    path.write_text("\n".join([json.dumps(fields), "{torn", *lines]))
    capsys.readouterr()
    assert run("records", "check", path, "--json") == 1
    problems = json.loads(capsys.readouterr().out)
    assert [int(text.split(":")[1]) for text in problems] == [2, 3, 4, 5, 6, 7, 8]
    assert run("records", "check", path) == 1
    assert "7 records, 7 problems" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "missing.onnx"], "missing.onnx"),
        (["tune"], "MODEL"),
        (["tune", "MODEL", "--trials", "0"], "trials"),
        (["tune", "MODEL", "--trials-per-region", "0"], "trials-per-region"),
        (["tune", "MODEL", "--time-limit", "0"], "time-limit"),
        (["tune", "MODEL", "--min-gain", "-1"], "min-gain"),
        (["tune", "MODEL", "--batch", "0"], "batch"),
        (["tune", "MODEL", "--plot", "tuning.txt"], "tuning.txt"),
        (["tune", "MODEL", "--plot", "nowhere/tuning.png"], "folder does not exist"),
        (["tune", "MODEL", "--strategy", "magic", "--dim", "batch=4"], "magic"),
        (["tune", "MODEL", "--threads", "none"], "threads"),
        (["tune", "MODEL", "--target", "z80", "--dim", "batch=4"], "z80"),
        (["tune", "MODEL", "--replay", "missing.jsonl", "--dim", "batch=4"], "missing.jsonl"),
        (["records", "show", "missing.jsonl"], "missing.jsonl"),
        (["records", "best", "missing.jsonl"], "missing.jsonl"),
        (["records", "check", "missing.jsonl"], "missing.jsonl"),
        (["records", "burn", "missing.jsonl"], "burn"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    message: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*(str(model) if text == "MODEL" else text for text in arguments)) == 2
    error = capsys.readouterr().err
    assert "Error: " in error and message in error
    assert "Traceback" not in error
