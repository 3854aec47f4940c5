"""set_seed: later sessions draw sequences that repeat, as ONNX Runtime's do, on every route."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.typing import NDArray

import tvm_hybrid
from tvm_hybrid.session.onnxruntime_api import random_seed

SHAPE = (4, 8)
X = np.zeros(SHAPE, np.float32)
RUNS = 3
PLAIN = """
    <ir_version: 8, opset_import: ["" : 17]>
    drawn (float[4, 8] x) => (float[4, 8] normal, float[4, 8] sum, float[4, 8] fixed)
    {
        normal = RandomNormalLike(x)
        uniform = RandomUniform<shape = [4, 8]>()
        sum = Add(uniform, x)
        fixed = RandomUniform<shape = [4, 8], seed = 3.0>()
    }"""
LOOP = """
    <ir_version: 8, opset_import: ["" : 17]>
    drawn (float[4, 8] x, int64 count) => (float[4, 8] sum, float[k, 4, 8] turns)
    {
        yes = Constant<value = bool {1}>()
        sum, turns = Loop(count, yes, x) <body = turn (int64 i, bool c, float[4, 8] before)
            => (bool again, float[4, 8] after, float[4, 8] each)
        {
            again = Identity(c)
            each = RandomUniform<shape = [4, 8]>()
            after = Add(before, each)
        }>
    }"""


@pytest.fixture(autouse=True)
def no_seed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of other tests draw numbers without a seed."""
    monkeypatch.setattr(random_seed, "_given", None)


def session(model: Any = PLAIN, **options: Any) -> tvm_hybrid.InferenceSession:
    """A session of a model as text, or of a library."""
    if isinstance(model, str):
        model = onnx.parser.parse_model(model)
    return tvm_hybrid.InferenceSession(model, **{"num_threads": 1} | options)


def drawn(made: Any) -> list[NDArray[np.float32]]:
    """The outputs of several runs that have no seed of their own."""
    return [each for _ in range(RUNS) for each in made.run(["normal", "sum"], {"x": X})]


def differ(arrays: list[NDArray[np.float32]]) -> bool:
    """Whether no two arrays are equal."""
    return len({each.tobytes() for each in arrays}) == len(arrays)


def test_sessions_repeat_as_those_of_onnx_runtime_do(tmp_path: Path) -> None:
    path = tmp_path / "drawn.onnx"
    onnx.save(onnx.parser.parse_model(PLAIN), path)
    for ort in (onnxruntime, tvm_hybrid):
        ort.set_seed(7)
        first, second = (ort.InferenceSession(path) for _ in range(2))
        numbers = drawn(first)
        np.testing.assert_array_equal(drawn(second), numbers)
        assert differ(numbers)
        ort.set_seed(8)
        assert differ([*numbers, *drawn(ort.InferenceSession(path)), *drawn(first)])


def test_without_a_seed_sessions_differ() -> None:
    earlier = session()
    tvm_hybrid.set_seed(7)
    assert differ([*drawn(earlier), *drawn(session()), *drawn(earlier)])


def test_a_seed_of_the_model_is_stronger() -> None:
    (free,) = session().run(["fixed"], {"x": X})
    tvm_hybrid.set_seed(7)
    np.testing.assert_array_equal(session().run(["fixed"], {"x": X}), [free])


def others(made: tvm_hybrid.InferenceSession, path: Path) -> Iterator[list[NDArray[np.float32]]]:
    """The same runs on other routes, each by a new session."""
    names = ["normal", "sum"]
    bound = session()
    for _ in range(RUNS):
        binding = bound.io_binding()
        binding.bind_input("x", X)
        for name in names:
            binding.bind_output(name)
        bound.run_with_iobinding(binding)
        yield [np.array(each) for each in binding.get_outputs()]
    made.executable.export(path)
    for each in (session(path), session(made.executable), session(start="fast", cache=False)):
        for _ in range(RUNS):
            yield each.run(names, {"x": X})
    with session(num_threads=None, streams=2) as streams:
        for _ in range(RUNS):
            yield streams.submit(names, {"x": X}).result()


def test_all_routes_draw_one_sequence(tmp_path: Path) -> None:
    """IO binding, libraries, executables, the fast start and streams."""
    tvm_hybrid.set_seed(-5)
    made = session()
    numbers = drawn(made)
    for place, found in enumerate(others(made, tmp_path / "drawn.so")):
        run = place % RUNS
        np.testing.assert_array_equal(found, numbers[2 * run : 2 * run + 2])


def test_a_program_of_the_cache_draws_the_sequence(caches: Path) -> None:
    tvm_hybrid.set_seed(7)
    numbers = drawn(session())
    assert list(caches.rglob("*.so"))
    np.testing.assert_array_equal(drawn(session()), numbers)


def test_numpy_does_not_draw_for_a_program() -> None:
    """Its numbers would be others, even those of a node with a seed."""
    (wanted,) = session().run(["fixed"], {"x": X})
    fast = session(start="fast", cache=False)
    np.testing.assert_array_equal(fast.run(["fixed"], {"x": X}), [wanted])
    text = str(fast.explain())
    assert "no fast start" in text and "would draw other numbers than the program" in text


def test_a_profile_does_not_change_the_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tvm_hybrid.set_seed(7)
    options = tvm_hybrid.SessionOptions()
    options.enable_profiling = True
    profiled = session(sess_options=options)
    np.testing.assert_array_equal(drawn(profiled), drawn(session()))
    assert '"random_key"' in Path(profiled.end_profiling()).read_text()


def test_every_turn_of_a_loop_draws() -> None:
    tvm_hybrid.set_seed(7)
    feeds = {"x": X, "count": np.array(3)}
    (total, turns), (again, same) = (session(LOOP).run(None, feeds) for _ in range(2))
    np.testing.assert_array_equal(turns, same)
    np.testing.assert_array_equal(total, again)
    assert differ(list(turns))


def test_other_programs_run_without_an_instrument() -> None:
    tvm_hybrid.set_seed(7)
    text = """<ir_version: 8, opset_import: ["" : 17]>
        plain (float[4, 8] x) => (float[4, 8] y) { y = Relu(x) }"""
    made = session(text)
    assert made._runner is made.executable
    assert session()._runner is not made.executable


def test_a_seed_is_an_integer() -> None:
    for ort in (onnxruntime, tvm_hybrid):
        with pytest.raises(TypeError):
            ort.set_seed("7")
