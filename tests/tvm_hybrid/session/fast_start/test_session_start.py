"""`InferenceSession(start="fast")`: NumPy computes results until the program is ready."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.onnx_builder import CONTRIB, OnnxBuilder
from tests.tvm_hybrid.session.test_dynamic_values import merged_decoder
from tvm_hybrid import InferenceSession, SessionOptions, Stage
from tvm_hybrid.errors import CompileError, FeedError, OptionError, SessionClosedError, ShapeError
from tvm_hybrid.frontend.onnx.reader.load_graph import read_dynamic_model
from tvm_hybrid.session.fast_start import background
from tvm_hybrid.session.fast_start.background import Compilation, NumpyAnswers

from ...small_models import mlp_module, run_python

pytestmark = pytest.mark.turns

LONG = 60  # seconds until a test that waits fails
X = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)


def layer(rows: int | str = 3, op: str = "Relu", domain: str = "") -> onnx.ModelProto:
    """op(x @ w) for a static or dynamic number of rows."""
    build = OnnxBuilder()
    weight = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    product = build.node("MatMul", build.input("x", [rows, 16]), build.constant(weight))
    build.output(build.node(op, product, domain=domain), [rows, 16])
    return build.model()


class Gate:
    """Blocks compilation at its first stage until it is opened, or makes it fail."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.error: Exception | None = None

    def __call__(self, _stage: Stage) -> None:
        assert self._open.wait(LONG)
        if self.error is not None:
            raise self.error

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that ends the thread even if a test fails."""
    gate = Gate()
    yield gate
    gate.open()


def held(gate: Gate, model: object, **options: object) -> InferenceSession:
    return InferenceSession(
        model, start="fast", progress=gate, num_threads=1, cache=False, **options
    )


def test_numpy_answers_until_the_program_is_there(gate: Gate) -> None:
    session = held(gate, layer())
    by_numpy = session.run
    early = by_numpy(None, {"x": X})[0]
    assert not session.ready(0)
    assert [arg.shape for arg in session.get_inputs()] == [[3, 16]]
    waiting = session.explain()
    assert {each.kernel for each in waiting} == {"NumPy"}
    assert [each.op for each in waiting] == ["MatMul", "Relu"]
    assert "being compiled" in waiting.summary()

    gate.open()
    assert session.ready()
    late = session.run(None, {"x": X})[0]
    assert session.explain().taken
    assert session._answers is None  # drops the second copy of the weights
    assert session.run is not by_numpy
    np.testing.assert_array_equal(by_numpy(None, {"x": X})[0], late)
    # 16 products, summed in another order, of values below 4.
    np.testing.assert_allclose(early, late, atol=16 * 2.0**-23 * 16)
    np.testing.assert_array_equal(
        late, InferenceSession(layer(), num_threads=1).run(None, {"x": X})[0]
    )


def test_integers_are_exact(gate: Gate) -> None:
    build = OnnxBuilder()
    weight = build.constant(np.arange(-128, 128).reshape(64, 4), np.int8)
    a = build.input("a", [2, 64], np.uint8)
    build.output(build.node("MatMulInteger", a, weight), [2, 4], np.int32)
    session = held(gate, build.model())
    feeds = {"a": np.arange(128, dtype=np.uint8).reshape(2, 64) * 2}
    early = session.run(None, feeds)[0]
    gate.open()
    session.ready()
    np.testing.assert_array_equal(early, session.run(None, feeds)[0])


def test_feeds_are_checked_alike(gate: Gate) -> None:
    session = held(gate, layer("rows"))
    wrong = [{}, {"x": X, "y": X}, {"x": X.astype(np.float64)}, {"x": X[:, :5]}, [X]]
    for feeds in wrong:
        with pytest.raises(FeedError):
            session.run(None, feeds)  # type: ignore[arg-type]
    with pytest.raises(FeedError, match="no output 'z'"):
        session.run(["z"], {"x": X})
    assert session.run(["Relu1"], {"x": X[:2].tolist()})[0].shape == (2, 16)
    assert session.run(output_names=None, input_feed={"x": X[:2]})[0].shape == (2, 16)


def test_what_compiling_raises_is_raised(gate: Gate) -> None:
    session = held(gate, layer())
    gate.error = ValueError("no more")
    gate.open()
    with pytest.raises(CompileError, match="no more"):
        session.ready()
    with pytest.raises(CompileError, match="no more"):
        session.run(None, {"x": X})


def test_an_operator_that_numpy_lacks(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """The session is compiled first and gives the reason."""
    caplog.set_level(logging.INFO, "tvm_hybrid")
    gate.open()
    session = held(gate, layer(op="FastGelu", domain=CONTRIB))
    assert session.ready(0)
    assert "no fast start: NumPy cannot run this model" in session.explain().summary()
    assert "FastGelu" in caplog.text


def test_other_models_than_onnx_are_compiled_first(gate: Gate) -> None:
    gate.open()
    session = held(gate, mlp_module())
    assert session.ready(0)
    assert "no fast start: NumPy runs ONNX models only" in session.explain().summary()


def test_an_export_of_several_programs_is_refused(gate: Gate, tmp_path: Path) -> None:
    """As without a fast start; the thread does not wait for itself."""
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.so")
    gate.open()
    session = held(gate, merged_decoder([1]), sess_options=options)
    with pytest.raises(ShapeError, match="no program has run yet"):
        session.ready(LONG)


def test_an_error_of_numpy_waits(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    session = held(gate, layer())

    def fail(*_: object) -> None:
        gate.open()
        raise TypeError("not in NumPy")

    assert session._answers is not None
    monkeypatch.setattr(session._answers._model, "run", fail)
    assert (session.run(None, {"x": X})[0] >= 0).all()
    assert session.explain().taken


def test_a_run_is_given_up_when_the_program_is_there() -> None:
    answers = NumpyAnswers(read_dynamic_model(layer()), {})
    compilation = Compilation(lambda: None)
    assert compilation.wait(LONG)
    assert answers.answer({"x": X}, compilation) is None


def test_numpy_gives_up_what_takes_long(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    session = held(gate, layer())
    answers = session._answers
    assert answers is not None
    monkeypatch.setattr(background, "PATIENCE", -1.0)
    threading.Timer(0.05, gate.open).start()
    session.run(None, {"x": X})
    assert session.ready(0) and answers._is_slow


def test_what_needs_the_program_waits(gate: Gate) -> None:
    session = held(gate, layer())
    threading.Timer(0.05, gate.open).start()
    assert session.executable.num_threads == 1
    assert session.ready(0)


def test_each_combination_has_a_program(gate: Gate) -> None:
    """A flag that selects a branch, and sizes that are known when feeds arrive."""
    session = held(gate, merged_decoder([1]))
    feeds = {
        "x": np.ones((1, 2, 8), np.float32),
        "past": np.ones((1, 3, 8), np.float32),
        "use_cache_branch": np.array([True]),
    }
    early = session.run(None, feeds)
    assert not session.ready(0)
    gate.open()
    session.ready()
    late = session.run(None, feeds)
    for first, second in zip(early, late, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)
    assert session.programs


def test_a_combination_that_is_new_is_answered_too(gate: Gate) -> None:
    session = held(gate, merged_decoder([1]))
    gate.open()
    session.ready()
    programs = session._programs
    assert programs is not None
    programs._sessions.clear()
    closed = Gate()
    session._face.progress._listener = closed
    feeds = {
        "x": np.ones((1, 2, 8), np.float32),
        "past": np.ones((1, 3, 8), np.float32),
        "use_cache_branch": np.array([True]),
    }
    session.run(None, feeds)
    assert not session.programs  # NumPy computed the result
    assert {each.kernel for each in session.explain()} == {"NumPy"}
    closed.open()
    key = programs.missing(feeds)
    while key is not None:
        session.run(None, feeds)
        key = programs.missing(feeds)
    assert len(session.programs) == 1


def test_streams_and_requests(gate: Gate) -> None:
    session = held(gate, layer(), streams=1)
    early = session.submit(None, {"x": X}).result(LONG)[0]
    gate.open()
    session.ready()
    np.testing.assert_allclose(session.run(None, {"x": X})[0], early, atol=1e-4)
    assert "1 stream of 1 thread" in session.explain().summary()


@pytest.mark.parametrize("model", [layer(), merged_decoder([1])], ids=["one program", "several"])
def test_a_closed_session_stays_closed(gate: Gate, model: onnx.ModelProto) -> None:
    session = held(gate, model)
    session.close()
    gate.open()
    session.ready()
    with pytest.raises(SessionClosedError):
        session.run(None, {"x": X})


def test_a_program_in_the_cache_is_taken(caches: Path) -> None:
    InferenceSession(layer(), num_threads=1)
    session = InferenceSession(layer(), num_threads=1, start="fast")
    assert session._answers is None
    assert session.ready(0)


def test_a_script_that_ends_keeps_its_program(caches: Path, tmp_path: Path) -> None:
    path = tmp_path / "layer.onnx"
    onnx.save_model(layer(), path)
    done = run_python(
        "import sys, numpy, tvm_hybrid\n"
        "session = tvm_hybrid.InferenceSession(sys.argv[1], start='fast', num_threads=1)\n"
        "session.run(None, {'x': numpy.ones((3, 16), numpy.float32)})\n",
        path,
    )
    assert done.returncode == 0, done.stderr
    assert InferenceSession(path, num_threads=1, start="fast")._answers is None


def test_other_starts_are_refused() -> None:
    with pytest.raises(OptionError, match="compiled, fast"):
        InferenceSession(layer(), start="slow")
