"""Arrays that a session reads and writes in every run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import pytest
from tvm import IRModule, relax, tirx

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.executable.test_input_alignment import at_offset
from tvm_hybrid.errors import FeedError, OptionError
from tvm_hybrid.session.bound_run import BoundRun, Place, refuse_overlap, room_of

WIDTH = 48


def layers(rows: int | str = "n") -> onnx.ModelProto:
    """x: float32[rows, WIDTH] -> a product of x, and its tanh by a TVM kernel."""
    build = OnnxBuilder()
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH))
    x = build.input("x", [rows, WIDTH])
    product = build.node("MatMul", x, build.constant(weight, np.float32))
    for value in (product, build.node("Tanh", product), build.node("Identity", x)):
        build.output(value, [rows, WIDTH])
    return build.model()


@pytest.fixture(scope="module", params=["n", 5], ids=["dynamic", "static"])
def session(request: pytest.FixtureRequest) -> tvm_hybrid.InferenceSession:
    return tvm_hybrid.InferenceSession(layers(request.param), num_threads=2)


def sample(rows: int = 5, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, WIDTH)).astype(np.float32)


def names_of(session: tvm_hybrid.InferenceSession) -> list[str]:
    return [each.name for each in session.get_outputs()]


def test_outputs_are_written_to_what_they_are_bound_to(
    session: tvm_hybrid.InferenceSession,
) -> None:
    assert {each.number for each in session.executable.manifest.bound_outputs} >= {0, 1}
    binding, x = session.io_binding(), sample()
    outs = [np.empty((5, WIDTH), np.float32) for _ in range(3)]
    binding.bind_input("x", x)
    for name, out in zip(names_of(session), outs, strict=True):
        binding.bind_output(name, out)
    for seed in range(3):
        x[...] = sample(seed=seed)  # what x holds at the time of the run
        session.run_with_iobinding(binding)
        for found, out, wanted in zip(
            binding.get_outputs(), outs, session.run(None, {"x": x}), strict=True
        ):
            assert found is out
            np.testing.assert_array_equal(out, wanted)
    copies = binding.copy_outputs_to_cpu()
    assert not any(np.shares_memory(*each) for each in zip(copies, outs, strict=True))


@pytest.mark.parametrize("offset", [0, 4, 60])
def test_arrays_may_lie_anywhere(session: tvm_hybrid.InferenceSession, offset: int) -> None:
    binding, x = session.io_binding(), at_offset(sample(), offset)
    wide = np.zeros((5, 2 * WIDTH), np.float32)
    outs = [at_offset(np.zeros_like(x), offset), at_offset(np.zeros_like(x), offset), wide[:, ::2]]
    binding.bind_cpu_input("x", x)
    for name, out in zip(names_of(session), outs, strict=True):
        binding.bind_output(name, out)
    binding.run()
    for out, wanted in zip(outs, session.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(out, wanted)
    assert not wide[:, 1::2].any()


def test_only_arrays_that_kernels_cannot_use_are_copied(
    session: tvm_hybrid.InferenceSession, caplog: pytest.LogCaptureFixture
) -> None:
    rows = 5 if session.get_inputs()[0].shape == [5, WIDTH] else 60  # more than 8 KB
    binding, (product, *_) = session.io_binding(), names_of(session)
    binding.bind_input("x", at_offset(sample(rows), 0))
    with caplog.at_level("INFO", "tvm_hybrid"):
        binding.bind_output(product, at_offset(np.zeros((rows, WIDTH), np.float32), 0))
        binding.run()
        assert "copied" not in caplog.text
        binding.bind_output(product, np.zeros((rows, 2 * WIDTH), np.float32)[:, ::2])
        binding.run()
        binding.run()
    assert caplog.text.count(f"output '{product}' is copied in every run") == (rows > 5)


def test_caches_of_bfloat16_with_room_are_copied() -> None:
    """TVM has no views of such tensors, so they are copied; results are right."""
    build, dtype = OnnxBuilder(24), ml_dtypes.bfloat16
    past = build.input("past", [2, 3, "room", 8], dtype)
    new, start = build.input("new", [2, 3, 1, 8], dtype), build.input("start", [2], np.int64)
    build.output(build.node("TensorScatter", past, new, start), [2, 3, "room", 8], dtype)
    model = build.model()
    model.ir_version = 10
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    cache, binding = np.zeros((2, 3, 9, 8), dtype), session.io_binding()
    binding.bind_input("past", cache[:, :, :5])
    binding.bind_input("new", np.ones((2, 3, 1, 8), dtype))
    binding.bind_input("start", np.array([0, 4]))
    binding.bind_output(names_of(session)[0], cache[:, :, :5])
    binding.run()
    assert cache[0, :, 0].all() and cache[1, :, 4].all()
    assert cache.astype(np.float32).sum() == 2 * 3 * 8


def test_without_an_array_every_run_makes_one(session: tvm_hybrid.InferenceSession) -> None:
    binding, x = session.io_binding(), sample()
    binding.bind_input("x", x)
    product, tanh, _ = names_of(session)
    binding.bind_output(tanh)
    binding.bind_output(product, np.empty_like(x))
    runs = []
    for _ in range(2):
        binding.run()
        runs.append(binding.get_outputs())
    assert runs[0][0] is not runs[1][0]
    assert runs[0][1] is runs[1][1]
    wanted = session.run([tanh, product], {"x": x})
    for found in runs:
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    binding.clear_binding_outputs()
    with pytest.raises(FeedError, match="no output is bound"):
        binding.run()
    binding.bind_output(tanh, "cpu")  # type: ignore[arg-type]
    binding.clear_binding_inputs()
    with pytest.raises(FeedError, match="no value for input 'x'"):
        session.run_with_iobinding(binding)


def test_sizes_may_change_between_runs() -> None:
    session = tvm_hybrid.InferenceSession(layers(), num_threads=1)
    binding = session.io_binding()
    for rows in (3, 1, 0, 40):
        x, out = sample(rows), np.empty((rows, WIDTH), np.float32)
        binding.bind_input("x", x)
        binding.bind_output(names_of(session)[0], out)
        binding.run()
        np.testing.assert_array_equal(out, session.run(None, {"x": x})[0])
    assert len(session.programs) == 1


def test_inputs_that_are_copied_may_change_in_size(session: tvm_hybrid.InferenceSession) -> None:
    binding = session.io_binding()
    binding.bind_output(names_of(session)[1])
    is_dynamic = session.get_inputs()[0].shape != [5, WIDTH]
    for seed, rows in enumerate((5, 3, 60, 60, 2, 5) if is_dynamic else (5, 5)):
        x = at_offset(sample(rows, seed), 4)  # TVM's kernels read a copy
        binding.bind_input("x", x)
        for _ in range(2):
            binding.run()
            wanted = session.run(None, {"x": x})[1]
            np.testing.assert_array_equal(binding.get_outputs()[0], wanted)
            x[...] += 1
    for wrong in (x.astype(np.float64), at_offset(np.zeros((5, WIDTH + 1), np.float32), 4)):
        binding.bind_input("x", wrong)
        with pytest.raises(FeedError, match="input 'x': expected"):
            binding.run()


def test_sizes_that_inputs_tell_by_name_are_not_asked_for() -> None:
    runner = BoundRun(tvm_hybrid.compile(layers(), num_threads=1, keep_dynamic=True))
    assert runner.sizes == [[("x", 0), WIDTH]] * len(runner.targets)
    runner.shapes = None
    product, tanh, _ = runner.run({"x": sample(7)}, {})
    assert product.shape == (7, WIDTH)
    np.testing.assert_allclose(tanh, np.tanh(product), rtol=1e-6, atol=1e-6)


def test_dimensions_of_one_name_may_have_two_sizes() -> None:
    session = tvm_hybrid.InferenceSession(
        tvm_hybrid.compile(two_products(), num_threads=1, keep_dynamic=True)
    )
    assert [each.shape for each in session.get_inputs()] == [["n", WIDTH]] * 2
    binding = session.io_binding()
    for sizes in ((5, 7), (3, 3), (2, 9)):
        feeds = {name: sample(rows) for name, rows in zip("xy", sizes, strict=True)}
        for name, value in feeds.items():
            binding.bind_input(name, value)
        first, second = names_of(session)
        given = np.empty((sizes[1], WIDTH), np.float32)
        binding.bind_output(first)
        binding.bind_output(second, given)
        binding.run()
        for found, wanted in zip(
            binding.copy_outputs_to_cpu(), session.run(None, feeds), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(given, binding.copy_outputs_to_cpu()[1])
    binding.bind_output(second, np.empty((4, WIDTH), np.float32))
    with pytest.raises(FeedError, match=rf"is output_1: float32\[9, {WIDTH}\]; it is bound to"):
        binding.run()


def two_products() -> IRModule:
    """A product of each input; their row counts are two variables with one name."""
    x, y = (
        relax.Var(name, relax.TensorType((tirx.Var("n", "int64"), WIDTH), "float32"))
        for name in "xy"
    )
    builder = relax.BlockBuilder()
    weight = relax.const(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)), "float32")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            products = [builder.emit(relax.op.matmul(each, weight)) for each in (x, y)]
            result = builder.emit_output(relax.Tuple(products))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("shape", [(WIDTH,), (1, 5, WIDTH), (5, WIDTH + 1)], ids=str)
def test_inputs_of_another_shape_are_refused_where_they_lie(
    session: tvm_hybrid.InferenceSession, shape: tuple[int, ...]
) -> None:
    binding = session.io_binding()
    for place, name in enumerate(names_of(session)):
        binding.bind_output(name, at_offset(np.empty((5, WIDTH), np.float32), 0) if place else None)
    for start in (0, 4):  # kernels read the first in place, and a copy of the second
        binding.bind_input("x", at_offset(np.zeros(shape, np.float32), start))
        with pytest.raises(FeedError, match=r"input 'x': expected .*; give an array of the shape"):
            binding.run()


def test_room_is_that_of_arrays_with_elements_of_this_size() -> None:
    runner = BoundRun(tvm_hybrid.compile(layers(5), num_threads=1))
    cache = np.zeros((2, 3, 9, 4), np.float32)[:, :, :5]
    every_other = np.zeros((2, 3, 9, 8), np.float16)[:, :, :5, ::2]
    assert cache.strides == every_other.strides
    assert [runner._room(each).rows for each in (cache, every_other)] == [9, -1]


@pytest.mark.parametrize(
    ("bytes_of", "outputs", "refused"),
    [
        ([(0, 9), (2, 4), (6, 8)], {2}, True),  # behind a shorter one within the first
        ([(0, 9), (2, 4), (6, 8)], {0}, True),
        ([(0, 4), (2, 6), (6, 8)], {2}, False),
        ([(0, 9), (2, 4), (9, 12)], {2}, False),
        ([(6, 8), (0, 9)], {0}, True),
    ],
    ids=str,
)
def test_places_that_overlap(
    bytes_of: list[tuple[int, int]], outputs: set[int], refused: bool
) -> None:
    memory = np.zeros(12, np.uint8)
    slots = [Slot(f"value{number}", number, number in outputs) for number in range(len(bytes_of))]
    start = memory.ctypes.data
    places = [
        Place(start + first, start + last, slot, memory[first:last])
        for (first, last), slot in zip(bytes_of, slots, strict=True)
    ]
    if not refused:
        return refuse_overlap(places)
    with pytest.raises(FeedError, match="are bound to the same memory"):
        refuse_overlap(places)


class Slot(NamedTuple):
    """A slot of a `Place` without a cache."""

    name: str
    number: int
    is_output: bool
    cache: int | None = None


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty((4, WIDTH), np.float32), r"is MatMul0: float32\[5, 48\]; it is bound to"),
        (np.empty((5, WIDTH), np.float64), "bound to MatMul0: float64"),
    ],
    ids=["shape", "type"],
)
def test_an_array_that_does_not_fit_is_refused(
    session: tvm_hybrid.InferenceSession, out: np.ndarray, message: str
) -> None:
    binding = session.io_binding()
    binding.bind_input("x", sample())
    binding.bind_output(names_of(session)[0], out)
    with pytest.raises(FeedError, match=message):
        binding.run()


def test_what_cannot_be_bound_is_refused(session: tvm_hybrid.InferenceSession) -> None:
    binding = session.io_binding()
    with pytest.raises(FeedError, match="no output 'z'; its outputs are"):
        binding.bind_output("z")
    read_only = np.broadcast_to(np.float32(0), (5, WIDTH))
    for wrong in (read_only, [1.0]):
        with pytest.raises(FeedError, match="an array that can be written to"):
            binding.bind_output(names_of(session)[0], wrong)  # type: ignore[arg-type]
    binding.bind_input("x", sample()[:, :4])
    binding.bind_output(names_of(session)[0])
    with pytest.raises(FeedError, match="input 'x': expected"):
        binding.run()
    with pytest.raises(OptionError, match="run_options"):
        session.run_with_iobinding(binding, object())


def test_memory_that_overlaps_is_refused(session: tvm_hybrid.InferenceSession) -> None:
    memory = at_offset(np.zeros((12, WIDTH), np.float32), 0)
    product, tanh, _ = names_of(session)
    binding = session.io_binding()
    binding.bind_input("x", memory[:5])
    binding.bind_output(product, memory[4:9])
    with pytest.raises(FeedError, match=r"input 'x' and output 'MatMul0' are bound to the same"):
        binding.run()
    binding.bind_output(product, memory[5:10])
    binding.run()
    binding.bind_input("x", sample())
    binding.bind_output(product, memory[:5])
    binding.bind_output(tanh, memory[4:9])
    with pytest.raises(FeedError, match=r"output '\w+' and output '\w+' are bound to the same"):
        binding.run()


def test_a_library_has_it_too(session: tvm_hybrid.InferenceSession, tmp_path: Path) -> None:
    loaded = tvm_hybrid.InferenceSession(session.executable.export(tmp_path / "model.so"))
    binding, x, out = loaded.io_binding(), sample(), np.empty((5, WIDTH), np.float32)
    binding.bind_input("x", x)
    binding.bind_output(names_of(loaded)[0], out)
    binding.run()
    np.testing.assert_array_equal(out, session.run(None, {"x": x})[0])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16])
def test_other_types(dtype: type) -> None:
    build = OnnxBuilder(19)
    x = build.input("x", ["n", WIDTH])
    build.output(build.node("Cast", x, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))),
                 ["n", WIDTH], dtype)  # fmt: skip
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    binding, given, out = session.io_binding(), sample(), np.empty((5, WIDTH), dtype)
    binding.bind_input("x", given)
    binding.bind_output(names_of(session)[0], out)
    binding.run()
    np.testing.assert_array_equal(out, given.astype(dtype))


def test_vectors_without_elements() -> None:
    build = OnnxBuilder()
    build.output(build.node("Neg", build.input("x", ["n"])), ["n"])
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    binding = session.io_binding()
    for size in (0, 3):
        x, out = np.ones(size, np.float32), np.zeros(size, np.float32)
        binding.bind_input("x", x)
        binding.bind_output(names_of(session)[0], out)
        binding.run()
        np.testing.assert_array_equal(out, -x)


def test_outputs_whose_size_data_decide_are_copied() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n"])
    build.output(build.node("NonZero", x), [1, None], np.int64)  # type: ignore[list-item]
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    assert not session.executable.manifest.bound_outputs
    binding, out = session.io_binding(), np.empty((1, 2), np.int64)
    binding.bind_input("x", np.array([0, 3, 0, 4], np.float32))
    binding.bind_output(names_of(session)[0], out)
    binding.run()
    assert out.tolist() == [[1, 3]]
    binding.bind_input("x", np.ones(5, np.float32))
    with pytest.raises(FeedError, match=r"it is bound to"):
        binding.run()


def test_a_session_of_programs_for_each_shape() -> None:
    build = OnnxBuilder()
    x, w = build.input("x", ["n", 4]), build.input("w", ["k", "k", 2])
    build.output(build.node("Reshape", x, build.input("shape", [2], np.int64)), None)
    build.output(build.node("DFT", w, axis=1), None)  # its length must be static
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    binding = session.io_binding()
    for rows in (2, 3):
        out = np.empty((4, rows), np.float32)
        given = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        binding.bind_input("x", given)
        binding.bind_input("w", np.zeros((rows, rows, 2), np.float32))
        binding.bind_input("shape", np.array([4, rows]))
        binding.bind_output(names_of(session)[0], out)
        binding.run()
        np.testing.assert_array_equal(out, given.reshape(4, rows))
    assert len(session.programs) == 2


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (lambda a: a[:, :, :5], True),
        (lambda a: a[:, :, :0], True),
        (lambda a: a[:1, :, :5], True),
        (lambda a: a[:, :, 2:5], True),  # the first rows of the array that begins there
        (lambda a: a[:, ::2, :5], False),
        (lambda a: a[:, :, ::2], False),
        (lambda a: a[..., :3], False),
        (lambda a: a[:, :, :5].swapaxes(0, 1), False),
        (lambda a: a[0, 0], False),
    ],
)
def test_which_arrays_have_room(view, wanted: bool) -> None:
    array = view(np.zeros((2, 3, 9, 4), np.float32))
    assert (array.ndim > 2 and room_of(array).rows >= array.shape[-2]) == wanted
