"""Progress of compilation: stages reported to a callable, or a line on standard error."""

from __future__ import annotations

import io
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_hybrid
from relay_passes.ir.stages import advance, listening
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession, SessionOptions, Stage
from tvm_hybrid.errors import OptionError
from tvm_hybrid.session import progress
from tvm_hybrid.session.progress import PROGRESS_VARIABLE, Progress

from .test_dynamic_values import merged_decoder

LONG = 60  # seconds until a test that waits for a line fails


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows progress lines, without delay."""
    monkeypatch.delenv(PROGRESS_VARIABLE)
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "REFRESH", 0.001)


def standard_error(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> io.StringIO:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return stream


def wait_for(text: str, stream: io.StringIO) -> None:
    until = time.monotonic() + LONG
    while text not in stream.getvalue():
        assert time.monotonic() < until, stream.getvalue()[-300:]
        time.sleep(0.001)


def doubled(rows: int | str) -> onnx.ModelProto:
    """relu(x @ w) for a static or dynamic number of rows."""
    build = OnnxBuilder()
    weight = build.constant(np.full((4, 4), 2, np.float32))
    build.output(
        build.node("Relu", build.node("MatMul", build.input("x", [rows, 4]), weight)), [rows, 4]
    )
    return build.model()


X = {"x": np.ones((3, 4), np.float32)}
DECODER = {"x": np.ones((1, 2, 8), np.float32), "past": np.ones((1, 3, 8), np.float32)}
FLAG = "use_cache_branch"


@pytest.mark.parametrize(
    ("make", "feeds", "programs"),
    [
        pytest.param(lambda: doubled(3), [X], 1, id="static"),
        pytest.param(lambda: doubled("rows"), [X], 1, id="dynamic"),
        pytest.param(
            lambda: merged_decoder((1,)),
            [{**DECODER, FLAG: np.array([flag])} for flag in (False, True)],
            2,
            id="flag",
        ),
    ],
)
def test_the_constructor_tells_every_stage_and_the_first_run_none(
    make: Callable[[], onnx.ModelProto], feeds: list[dict[str, np.ndarray]], programs: int
) -> None:
    told: list[Stage] = []
    session = InferenceSession(make(), num_threads=1, progress=told.append)
    begun = [stage for stage in told if not stage.done]
    numbers = [stage.number for stage in begun]
    # The attempt to serve both values of a flag with one program ends before the first stage.
    assert numbers == [*range(1, 11)] * programs
    assert {stage.count for stage in told} == {10}
    assert begun[-1].title == "machine code"
    assert told[-1].number == 10 and told[-1].done == told[-1].parts > 0
    assert len(session.programs) == programs
    told.clear()
    for each in feeds:
        session.run(None, each)
    assert not told


def test_a_run_that_compiles_tells_its_stages() -> None:
    """The channel count arrives with the inputs: a dynamic program would be slower."""
    build = OnnxBuilder()
    x, weight = build.input("x", ["n", "c", 6, 6]), build.input("weight", [2, "c", 3, 3])
    build.output(build.node("Conv", x, weight), ["n", 2, 4, 4])
    told: list[Stage] = []
    session = InferenceSession(build.model(), num_threads=1, progress=told.append)
    told.clear()
    feeds = {"x": np.ones((1, 3, 6, 6), np.float32), "weight": np.ones((2, 3, 3, 3), np.float32)}
    for wanted in ([*range(1, 11)], []):
        session.run(None, feeds)
        assert [stage.number for stage in told if not stage.done] == wanted
        told.clear()
    summary = session.explain().summary()
    assert "one program for each combination of shapes, because strict: no template" in summary


def test_kernels_are_counted_in_groups() -> None:
    """There are more kernels than one group has: some are done before others."""
    build = OnnxBuilder()
    axis = build.constant(np.array(0))
    for rows in range(2, 12):
        build.output(build.node("CumSum", build.input(f"x{rows}", (rows, 7)), axis), (rows, 7))
    told: list[Stage] = []
    InferenceSession(build.model(), num_threads=1, progress=told.append)
    for title in ("kernels optimised by LLVM", "machine code"):
        counts = [(stage.done, stage.parts) for stage in told if stage.title == title]
        assert counts[0] == (0, 0) and counts[1:] == [(1, 3), (2, 3), (3, 3)]


def test_an_exception_of_the_callable_ends_compiling() -> None:
    def refuse(stage: Stage) -> None:
        if stage.number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InferenceSession(doubled(3), num_threads=1, progress=refuse)


def test_what_is_no_callable_is_refused() -> None:
    with pytest.raises(OptionError, match="progress must be a callable, True, False or None"):
        InferenceSession(doubled(3), progress="yes")  # type: ignore[arg-type]


@pytest.mark.usefixtures("at_once")
@pytest.mark.skipif(shutil.which("g++") is None, reason="keeping a program needs g++")
def test_a_session_writes_one_line_with_name_stage_and_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "doubled.onnx"
    onnx.save(doubled(3), path)
    monkeypatch.setenv("TVM_HYBRID_CACHE_DIR", str(tmp_path))
    for variable, wanted in (
        ("0", "it is not kept for the next start: TVM_HYBRID_CACHE=0"),
        ("1", "it is kept for the next start"),
    ):
        monkeypatch.setenv("TVM_HYBRID_CACHE", variable)
        stream = standard_error(monkeypatch, io.StringIO())
        InferenceSession(path, num_threads=1)
        (line,) = stream.getvalue().splitlines()
        assert line.startswith("tvm_hybrid: compiling doubled.onnx: ") and line.endswith(wanted)
    stream = standard_error(monkeypatch, io.StringIO())
    InferenceSession(path, num_threads=1)  # from the cache
    assert "compiling doubled.onnx" not in stream.getvalue()


@pytest.mark.usefixtures("at_once")
def test_a_line_elsewhere_is_written_once_and_corrected_if_need_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = standard_error(monkeypatch, io.StringIO())
    with Progress(None, "m.onnx", False).shown("n=3") as outcome:
        wait_for("\n", stream)
        assert stream.getvalue() == (
            "tvm_hybrid: compiling m.onnx (n=3): reading the model; it is kept for the next start\n"
        )
        outcome.not_kept = "the disk is full"
    _, line = stream.getvalue().splitlines()
    assert line.startswith("tvm_hybrid: compiled m.onnx (n=3) in ")
    assert line.endswith(" s; it is not kept for the next start: the disk is full")


@pytest.mark.usefixtures("at_once")
def test_a_terminal_shows_what_is_done_and_at_the_end_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = standard_error(monkeypatch, Terminal())
    with Progress(None, "m.onnx", False).shown():
        wait_for("\rtvm_hybrid: compiling m.onnx: reading the model\x1b[K", stream)
        tvm_hybrid.compile(doubled(3), num_threads=1)
        wait_for("compiling m.onnx: stage 9 of 10, kernels optimised by LLVM\x1b[K", stream)
        advance(2, 3)
        wait_for("stage 9 of 10 (2 of 3 done), kernels optimised by LLVM\x1b[K", stream)
    assert stream.getvalue().count("\n") == 1
    last = stream.getvalue().rsplit("\r", 1)[1]
    assert last.startswith("\x1b[Ktvm_hybrid: compiled m.onnx in ")
    assert last.endswith(" s; it is kept for the next start\n")
    monkeypatch.setenv("COLUMNS", "30")
    stream = standard_error(monkeypatch, Terminal())
    monkeypatch.setenv("COLUMNS", "30")
    with pytest.raises(ValueError, match="inside"), Progress(None, "m.onnx", False).shown():
        wait_for("\rtvm_hybrid: compiling m.on...\x1b[K", stream)
        raise ValueError("inside")
    assert stream.getvalue().endswith("\r\x1b[K")  # the line of a failure is erased


@pytest.mark.usefixtures("at_once")
def test_several_threads_share_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = standard_error(monkeypatch, Terminal())
    together = threading.Barrier(3, timeout=LONG)

    def work(number: int) -> None:
        with Progress(None, f"m{number}.onnx", False).shown():
            wait_for(f"compiling m{number}.onnx", stream)
            together.wait()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    lines = stream.getvalue().split("\n")
    assert lines.pop() == "" and len(lines) == 5  # two lines above the third, and three ends
    for number in range(3):
        assert sum(f"compiled m{number}.onnx in " in line for line in lines) == 1


@contextmanager
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the threads that write lines."""
    stream = standard_error(monkeypatch, io.StringIO())
    before, names = set(threading.enumerate()), []
    yield names
    names += [each.name for each in set(threading.enumerate()) - before]
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("at_once")
def test_the_line_can_be_silenced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By an argument, the variable, the session's severity, or the severity of all sessions."""
    options = SessionOptions()
    options.log_severity_level = 3
    with written(monkeypatch) as left:
        InferenceSession(doubled(3), num_threads=1, progress=False)
        InferenceSession(doubled(3), options, num_threads=1)
        with caplog.at_level(logging.ERROR, "tvm_hybrid"):
            InferenceSession(doubled(3), num_threads=1)
        with listening(lambda stage: None):  # somebody else shows the stages
            InferenceSession(doubled(3), num_threads=1)
        tvm_hybrid.compile(doubled(3), num_threads=1)
        monkeypatch.setenv(PROGRESS_VARIABLE, "0")
        InferenceSession(doubled(3), num_threads=1)
    assert not left
    stream = standard_error(monkeypatch, io.StringIO())
    InferenceSession(doubled(3), options, num_threads=1, progress=True)
    assert "compiling" in stream.getvalue()
    options.log_severity_level = 2
    monkeypatch.delenv(PROGRESS_VARIABLE)
    stream = standard_error(monkeypatch, io.StringIO())
    with caplog.at_level(logging.ERROR, "tvm_hybrid"):
        InferenceSession(doubled(3), options, num_threads=1)
    assert "compiling" in stream.getvalue()


@pytest.mark.usefixtures("at_once")
def test_no_thread_is_left_and_nobody_needs_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    for stream in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        if stream is not None:
            stream.close()
        with Progress(None, "m.onnx", False).shown():
            assert [each.name for each in set(threading.enumerate()) - before] in (
                [],
                ["tvm_hybrid progress"],
            )
        assert set(threading.enumerate()) == before
    with pytest.raises(KeyboardInterrupt), Progress(None, "m.onnx", False).shown():
        raise KeyboardInterrupt
    assert set(threading.enumerate()) == before
