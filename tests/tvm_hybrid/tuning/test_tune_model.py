"""`tvm_hybrid.tune` on a small model, measured by the real worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.errors import ConfigError, TargetError
from tvm_hybrid.records.record_store import RecordStore
from tvm_hybrid.tuning import StopTuning, Trial

F32 = np.float32
ROWS, SIZE = 6, 24
OPTIONS: dict[str, Any] = {"num_threads": 1, "fusion": "fine", "strategy": "random", "min_gain": 0}


def three_layers() -> bytes:
    """Two equal layers and one without its ReLU."""
    g = OnnxBuilder()
    generator = np.random.default_rng(3)
    x = g.input("x", (ROWS, SIZE))
    for layer in range(3):
        weight = g.constant(generator.standard_normal((SIZE, SIZE)) / np.sqrt(SIZE), F32)
        x = g.node("MatMul", x, weight)
        if layer < 2:
            x = g.node("Relu", x)
    g.output(x, (ROWS, SIZE))
    model: onnx.ModelProto = g.model()
    return model.SerializeToString()


def test_a_model_from_python(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    seen: list[Trial] = []

    def watch(trial: Trial) -> None:
        seen.append(trial)
        if trial.stage == "search" and trial.trials_done == 5:
            raise StopTuning("five are enough")

    result = tvm_hybrid.tune(three_layers(), records=path, callbacks=[watch], **OPTIONS)
    assert result.reason == "five are enough"
    assert sorted(task.weight for task in seen[0].tasks) == [1, 2]
    assert sorted(region.weight for region in result.regions) == [1, 2]
    assert sum(region.tried for region in result.regions) == 5
    assert {record.status for record, _ in RecordStore(path)} == {"ok"}
    assert result.best_us <= result.default_us

    # Compiling with the records gives the reported result.
    executable = tvm_hybrid.compile(three_layers(), num_threads=1, fusion="fine", records=path)
    best = {found.region.key: found.best for found in result.regions}
    taken = executable.explain().taken
    assert {decision.workload for decision in taken} == set(best)
    assert all(decision.config == best[decision.workload] for decision in taken)

    # An equal call continues: the budget counts existing records.
    count = len(list(RecordStore(path)))
    result = tvm_hybrid.tune(three_layers(), records=path, trials=6, **OPTIONS)
    assert result.reason == "all 6 trials are made"
    assert sum(region.known for region in result.regions) == 5
    assert sum(region.tried for region in result.regions) == 6
    assert len(list(RecordStore(path))) > count


@pytest.mark.slow
def test_what_is_done_if_nothing_is_asked_for(tmp_path: Path) -> None:
    """By default it uses the learning strategy, with the package's records for this CPU."""
    path = tmp_path / "r.jsonl"
    result = tvm_hybrid.tune(three_layers(), num_threads=1, fusion="fine", records=path, trials=10)
    assert result.reason == "all 10 trials are made"
    searched = [record for record in result.records if record.confirmed is None]
    assert len(searched) == 8 and {record.status for record in searched} == {"ok"}
    # It learns from the second batch on, and reports predictions.
    assert any(record.predicted for record in searched)
    assert all(region.speedup >= 1 for region in result.regions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials must be at least 1, not 0"),
        ({"trials_per_region": -1}, "trials_per_region must be at least 1, not -1"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"min_gain": -0.1}, r"min_gain must be at least 0, not -0\.1"),
        ({"min_gain": float("nan")}, "min_gain must be at least 0, not nan"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, not 0"),
        ({"time_limit": -5}, "time_limit must be more than 0 seconds, not -5"),
        ({"strategy": "magic"}, "no search strategy 'magic'; there are model,"),
    ],
)
def test_what_cannot_be_asked_for(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with pytest.raises(ConfigError, match=message):
        tvm_hybrid.tune(b"not looked at", records=path, **{**OPTIONS, **changes})
    assert not path.exists()


def test_a_cpu_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="z80"):
        tvm_hybrid.tune(three_layers(), target="z80", records=tmp_path / "r.jsonl", **OPTIONS)
