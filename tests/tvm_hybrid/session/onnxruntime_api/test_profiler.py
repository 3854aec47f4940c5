"""Profiles of sessions: an event for each kernel of each run, in a file that viewers accept."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microkernels.base.errors import OutputError
from tvm_hybrid import InferenceSession, SessionOptions
from tvm_hybrid.session.onnxruntime_api import profiler

from .models import sample, talkative
from .test_session import of_no_known_rank

pytestmark = pytest.mark.turns


def options(folder: Path) -> SessionOptions:
    found = SessionOptions()
    found.enable_profiling, found.profile_file_prefix = True, str(folder / "run")
    return found


def events(path: str) -> list[dict[str, Any]]:
    """The events of a trace, after a check of their form."""
    found: list[dict[str, Any]] = json.loads(Path(path).read_text())
    for each in found:
        assert each["ph"] == "X" and each["dur"] >= 0 and each["ts"] >= 0
        assert {"pid", "tid", "name", "cat", "args"} <= each.keys()
        assert each["tid"] > 0  # Perfetto takes 0 for an idle CPU
    assert_nested(found)
    return found


def assert_nested(found: list[dict[str, Any]]) -> None:
    """Events of a track nest or are disjoint: viewers cannot draw others and drop them."""
    for track in {each["tid"] for each in found}:
        ends: list[int] = []
        for each in (each for each in found if each["tid"] == track):
            start = round(each["ts"] * 1e3)
            end = start + round(each["dur"] * 1e3)
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in found if each["cat"] == kind]


@pytest.mark.parametrize("rows", [3, "batch"], ids=["static", "dynamic"])
def test_every_kernel_of_every_run_has_an_event(rows: int | str, tmp_path: Path) -> None:
    before = time.monotonic_ns()
    session = InferenceSession(talkative(rows), options(tmp_path), num_threads=1)
    assert before <= session.get_profiling_start_time_ns() <= time.monotonic_ns()
    binding, x = session.io_binding(), sample()
    (expected, *_) = InferenceSession(talkative(rows), num_threads=1).run(None, {"x": x})
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    binding.bind_input("x", x)
    binding.bind_output(session.get_outputs()[0].name)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0], expected)
    path = session.end_profiling()
    assert Path(path).name.startswith("run_") and path.endswith(".json")
    found = events(path)
    functions = {each.function for each in session.executable.manifest.decisions if each.function}
    kernels, runs = of_kind(found, "Node"), of_kind(found, "Session")
    assert len(runs) == 4
    for function in functions:
        assert sum(each["name"] == function for each in kernels) == 4
    assert any("matmul" in each["args"]["op_name"] for each in kernels)
    assert all(each["args"]["kernel"] for each in kernels)
    texts = {each["args"]["onnx"] for each in kernels}
    assert any("(MatMul)" in text for text in texts)
    for kernel in kernels:  # each event lies within a run
        assert any(
            run["ts"] <= kernel["ts"] and kernel["ts"] + kernel["dur"] <= run["ts"] + run["dur"]
            for run in runs
        )
    assert session.end_profiling() == ""
    session.run(None, {"x": x})
    assert events(path) == found


def test_a_single_kernel_is_noted(tmp_path: Path) -> None:
    """Without profiling, such a model bypasses the virtual machine, which records events."""
    model = talkative(3)
    del model.graph.output[1]
    session = InferenceSession(model, options(tmp_path), num_threads=1, cache=False)
    assert session.executable.bare_kernel() is not None
    for _ in range(2):
        session.run(None, {"x": sample()})
    assert len(of_kind(events(session.end_profiling()), "Node")) == 2


def test_threads_have_tracks_of_their_own(tmp_path: Path) -> None:
    session = InferenceSession(talkative(3), options(tmp_path), num_threads=1)
    threads = [threading.Thread(target=session.run, args=(None, {"x": sample()})) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    session.run(None, {"x": sample()})
    runs = of_kind(events(session.end_profiling()), "Session")
    assert len(runs) == 3 and threading.get_native_id() in {each["tid"] for each in runs}


def test_programs_that_are_compiled_late_are_noted(tmp_path: Path) -> None:
    session = InferenceSession(of_no_known_rank(), options(tmp_path), num_threads=1)
    for axis in (0, 1):
        session.run(None, {"x": np.ones((2, 3), np.float32), "axes": np.array([axis])})
    found = events(session.end_profiling())
    assert len(of_kind(found, "Session")) == 2 and len(of_kind(found, "Node")) >= 2


def test_a_session_that_is_gone_has_written_its_file(tmp_path: Path) -> None:
    session = InferenceSession(talkative(3), options(tmp_path), num_threads=1)
    session.run(None, {"x": sample()})
    del session
    gc.collect()
    (path,) = tmp_path.glob("run_*.json")
    assert of_kind(events(str(path)), "Node")


def test_events_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(profiler, "MOST_EVENTS", 3)
    session = InferenceSession(talkative(3), options(tmp_path), num_threads=1)
    for _ in range(5):
        session.run(None, {"x": sample()})
    assert len(events(session.end_profiling())) == 3
    assert "more were lost" in caplog.text


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nowhere"):
        InferenceSession(talkative(3), options(tmp_path / "nowhere"))


def test_without_the_option_there_is_no_profile() -> None:
    session = InferenceSession(talkative(3), num_threads=1)
    assert session.end_profiling() == "" and session.get_profiling_start_time_ns() == 0
