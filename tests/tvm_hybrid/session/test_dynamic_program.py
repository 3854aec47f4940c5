"""One program for all sizes: compiled in the constructor, checked, exported, explained."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from tvm import relax, tirx

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.errors import FeedError

POSITIONS = 10


def model() -> onnx.ModelProto:
    """Adds positions to rows and joins a past; returns all rows, masked, and their maximum."""
    build = OnnxBuilder()
    x = build.input("x", ["batch", "n", 4])
    past = build.input("cache", ["batch", "past", 4])
    mask = build.input("mask", ["batch", "past + n"], np.int32)
    zero, one = build.constant([0], np.int64), build.constant([1], np.int64)
    length = build.node("Slice", build.node("Shape", x), one, build.constant([2], np.int64))
    table = build.constant(np.arange(4 * POSITIONS).reshape(POSITIONS, 4), np.float32)
    placed = build.node("Add", x, build.node("Slice", table, zero, length))
    joined = build.node("Concat", past, placed, axis=1)
    kept = build.node("Unsqueeze", build.node("Cast", mask, to=1), build.constant([2], np.int64))
    build.output(build.node("Mul", joined, kept), ["batch", "past + n", 4])
    flat = build.node("Reshape", joined, build.constant([0, -1], np.int64))
    build.output(build.node("ReduceMax", flat, axes=[1], keepdims=0), ["batch"])
    return build.model()


def feeds(batch: int, n: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch + 10 * n + 100 * past)
    return {
        "x": rng.standard_normal((batch, n, 4)).astype(np.float32),
        "cache": rng.standard_normal((batch, past, 4)).astype(np.float32),
        "mask": rng.integers(0, 2, (batch, past + n)).astype(np.int32),
    }


SIZES = [(1, 1, 0), (2, 3, 5), (1, POSITIONS, 7), (3, 2, 1), (1, 1, 40)]


@pytest.fixture(scope="module")
def session() -> tvm_hybrid.InferenceSession:
    return tvm_hybrid.InferenceSession(model(), num_threads=1)


def same_as_onnx_runtime(session: tvm_hybrid.InferenceSession, sizes: tuple[int, int, int]) -> None:
    given = feeds(*sizes)
    expected = literal_session(model()).run(None, given)
    for found, wanted in zip(session.run(None, given), expected, strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)  # one addition, or none


@pytest.mark.parametrize("sizes", SIZES)
def test_one_program_runs_all_sizes(
    session: tvm_hybrid.InferenceSession, sizes: tuple[int, int, int]
) -> None:
    executable = session.executable
    same_as_onnx_runtime(session, sizes)
    assert session.executable is executable
    (program,) = session.programs
    assert program.shapes == {
        "x": ("batch", "n", 4),
        "cache": ("batch", "past", 4),
        "mask": ("batch", "past + n"),
    }


def test_sizes_that_are_given_are_known() -> None:
    session = tvm_hybrid.InferenceSession(model(), shapes={"batch": 2, "x": (None, 3, 4)})
    (program,) = session.programs
    assert program.shapes == {"x": (2, 3, 4), "cache": (2, "past", 4), "mask": (2, "past + 3")}
    assert [x.shape for x in session.get_outputs()] == [[2, "past + n", 4], [2]]
    same_as_onnx_runtime(session, (2, 3, 5))
    with pytest.raises(FeedError, match=r"expected x: float32\[2, 3, 4\]"):
        session.run(None, feeds(1, 3, 5))


def test_no_elements_are_no_error(session: tvm_hybrid.InferenceSession) -> None:
    whole, largest = session.run(None, feeds(0, 2, 3))
    assert (whole.shape, largest.shape) == ((0, 5, 4), (0,))
    whole, largest = session.run(None, feeds(2, 0, 0))
    assert whole.shape == (2, 0, 4)
    np.testing.assert_array_equal(largest, [-np.inf, -np.inf])


def changed(name: str, shape: tuple[int, ...], dtype: str) -> dict[str, np.ndarray]:
    return {**feeds(2, 3, 4), name: np.zeros(shape, dtype)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (changed("cache", (3, 4, 4), "float32"), "'batch' is 2 in input 'x', axis 0, but 3 in"),
        (changed("mask", (2, 6), "int32"), "input 'mask', axis 1 is 6; .* past . n, which is 7"),
        (feeds(1, POSITIONS + 1, 0), "'n' is 11; the model takes at most 10"),
        (changed("x", (2, 3), "float32"), r"expected x: float32\[batch, n, 4\], got .*\[2, 3\]"),
        (changed("x", (2, 3, 5), "float32"), r"expected x: .* got x: float32\[2, 3, 5\]"),
        (changed("x", (2, 3, 4), "float64"), r"expected x: .* got x: float64\[2, 3, 4\]"),
    ],
)
def test_sizes_that_do_not_fit_are_feed_errors(
    session: tvm_hybrid.InferenceSession, given: dict[str, np.ndarray], words: str
) -> None:
    with pytest.raises(FeedError, match=words):
        session.run(None, given)
    with pytest.raises(FeedError, match=words):
        session.executable.run(given)
    same_as_onnx_runtime(session, SIZES[1])


def test_arrays_of_any_alignment_and_order_and_lists(session: tvm_hybrid.InferenceSession) -> None:
    given = feeds(2, 3, 5)
    expected = session.run(None, given)
    raw = np.empty(given["x"].nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float32).reshape(given["x"].shape)
    odd[...] = given["x"]
    turned = np.asfortranarray(given["cache"])
    for value in (odd, given["x"].tolist()):
        found = session.run(None, {"x": value, "cache": turned, "mask": given["mask"].tolist()})
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_interface_names_dynamic_sizes(session: tvm_hybrid.InferenceSession) -> None:
    assert [arg.shape for arg in session.get_inputs()][2] == ["batch", "past + n"]
    assert [info.shape for info in session.executable.outputs] == [
        ("batch", "past + n", 4),
        ("batch",),
    ]
    assert session.executable.manifest.limits == {"n": POSITIONS}
    words = f"dynamic dimensions: batch, n from 0 to {POSITIONS}, past"
    assert words in session.explain().summary() or words in str(session.explain())


def test_an_exported_program_keeps_its_dynamic_sizes(
    session: tvm_hybrid.InferenceSession, tmp_path: Path
) -> None:
    library = session.executable.export(tmp_path / "dynamic.so")
    loaded = tvm_hybrid.InferenceSession(library)
    for sizes in SIZES[:3]:
        same_as_onnx_runtime(loaded, sizes)
    with pytest.raises(FeedError, match="takes at most 10"):
        loaded.run(None, feeds(1, POSITIONS + 1, 0))
    assert loaded.executable.manifest.limits == {"n": POSITIONS}


def test_profile_runs_with_sizes_of_one(session: tvm_hybrid.InferenceSession) -> None:
    assert session.executable.profile(repeat=1)


def test_shapes_of_all_make_code_for_just_these() -> None:
    made = tvm_hybrid.InferenceSession(
        model(), shapes={"batch": 1, "past": 2, "n": 3}, num_threads=1
    )
    assert made.executable.inputs[2].shape == (1, 5)
    assert not made.executable.is_dynamic


def test_where_templates_are_missing_programs_are_made_for_single_shapes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", "c", "h", "w"])
    weight = build.input("weight", [2, "c", 3, 3])
    build.output(build.node("Conv", x, weight), ["n", 2, "p", "q"])
    with caplog.at_level(logging.INFO, "tvm_hybrid"):
        session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
        assert not session.programs
        assert "a program for each combination of inputs: " in caplog.text
        feeds = {"x": np.ones((1, 3, 4, 4)), "weight": np.ones((2, 3, 3, 3))}
        (found,) = session.run(None, {name: x.astype("float32") for name, x in feeds.items()})
    np.testing.assert_array_equal(found, np.full((1, 2, 2, 2), 27, np.float32))
    assert len(session.programs) == 1


def test_products_of_activations_and_their_softmax_are_one_program() -> None:
    """This is no attention: operators between softmax and product separate them."""
    build = OnnxBuilder()
    x, y = build.input("x", ["batch", "n", 8]), build.input("y", ["batch", "m", 8])
    scores = build.node("MatMul", x, build.node("Transpose", y, perm=[0, 2, 1]))
    shares = build.node("Sqrt", build.node("Softmax", scores, axis=-1))
    build.output(build.node("MatMul", shares, y), ["batch", "n", 8])
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    taken = [decision.op for decision in session.explain().taken]
    assert taken == ["batch_matmul", "softmax + sqrt", "batch_matmul"]
    for batch, n, m in [(1, 1, 1), (2, 3, 17), (0, 2, 2), (3, 0, 4)]:
        rng = np.random.default_rng(n)
        given = {"x": rng.standard_normal((batch, n, 8)), "y": rng.standard_normal((batch, m, 8))}
        given = {name: value.astype(np.float32) for name, value in given.items()}
        (found,) = session.run(None, given)
        powers = np.exp(given["x"].astype(float) @ given["y"].transpose(0, 2, 1))
        wanted = np.sqrt(powers / powers.sum(-1, keepdims=True)) @ given["y"]
        # Sums of 8 and of m terms below 30 and 4, and relative errors of their exponentials.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1000 * np.finfo(np.float32).eps)
    assert len(session.programs) == 1


def test_weights_of_few_bits_stay_so_for_any_number_of_rows() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 64])
    weight = np.random.default_rng(0).integers(-128, 128, (64, 40)).astype(np.int8)
    stored = build.constant(weight, np.int8)
    scaled = build.node("DequantizeLinear", stored, build.constant(0.01, np.float32))
    build.output(build.node("MatMul", x, scaled), ["n", 40])
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    (decision,) = session.explain().taken
    assert decision.op == "weight_only_matmul"
    assert decision.at_run_time.startswith("1 to 4 rows: the weight is decoded in registers; more:")
    for rows in (0, 1, 3, 5, 40):
        value = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
        (found,) = session.run(None, {"x": value})
        wanted = value.astype(float) @ (weight * 0.01)
        # 64 products below 6, each with a few roundings.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=68 * 6 * 64 * 2**-23)
    assert len(session.programs) == 1


def test_explain_says_what_is_decided_at_run_time() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 64])
    product = build.node("MatMul", x, build.constant(np.ones((64, 512)), np.float32))
    build.output(build.node("Softmax", product, axis=-1), ["n", 512])
    opened = tvm_hybrid.InferenceSession(build.model(), num_threads=1).explain()
    product, softmax = (decision.at_run_time for decision in opened.taken)
    assert "panels of columns side by side; more: tiles of" in product
    assert softmax.startswith("blocks of")
    cells = [str(cell) for cell in opened.table().columns[-1].cells]
    assert any(cell.endswith(f"; at run time: {softmax}") for cell in cells)
    known = tvm_hybrid.InferenceSession(build.model(), shapes={"n": 7}, num_threads=1).explain()
    assert [decision.at_run_time for decision in known.taken] == [""] * len(known.taken)


def test_a_session_takes_a_relax_module_with_symbols() -> None:
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(out)
    session = tvm_hybrid.InferenceSession(builder.get(), num_threads=1)
    for rows in (0, 3):
        (found,) = session.run(None, {"x": np.zeros((rows, 4), np.float32)})
        np.testing.assert_array_equal(found, np.ones((rows, 4)))


def test_compile_keeps_sizes_dynamic_if_asked_to() -> None:
    executable = tvm_hybrid.compile(model(), shapes={"batch": 2}, keep_dynamic=True, num_threads=1)
    assert executable.inputs[0].shape == (2, "n", 4)
    given = feeds(2, 3, 5)
    expected = literal_session(model()).run(None, given)
    for found, wanted in zip(executable.run(given), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_does_not_grow_with_the_number_of_lengths() -> None:
    build = OnnxBuilder()
    x = build.input("x", ["n", 64])
    wide = build.node("Concat", x, x, axis=1)
    exp = build.node("Exp", build.node("Transpose", build.node("Concat", wide, wide, axis=0)))
    build.output(build.node("ReduceSum", exp, build.constant([1]), keepdims=0), [128])
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    lengths = np.random.default_rng(0).permutation(1000) + 1

    def run(some: np.ndarray) -> int:
        for length in some.tolist():
            session.run(None, {"x": np.ones((length, 64), np.float32)})
        return resident_bytes()

    # A block for each size would take half a megabyte for each length and tensor, 400 MB in all.
    before = run(lengths[:200])
    assert run(lengths[200:]) - before < 32 << 20


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, np.int8, np.bool_])
def test_arrays_of_other_types(dtype: type) -> None:
    build = OnnxBuilder(opset=21)
    x = build.input("x", ["n", 4], dtype)
    build.output(build.node("Transpose", x), [4, "n"], dtype)
    session = tvm_hybrid.InferenceSession(build.model(), num_threads=1)
    for rows in (3, 0, 50):
        value = np.arange(rows * 4).reshape(rows, 4).astype(np.int8).astype(dtype)
        (found,) = session.run(None, {"x": value})
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value.T)
    assert len(session.programs) == 1


def test_a_relax_module_keeps_its_symbols() -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType((n, m), "float32"))
    y = relax.Var("y", relax.TensorType((n + m,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            flat = builder.emit(relax.op.reshape(x, relax.ShapeExpr([n * m])))
            out = builder.emit_output(relax.op.concat([flat, y], axis=0))
        builder.emit_func_output(out)
    executable = tvm_hybrid.compile(builder.get(), keep_dynamic=True, num_threads=1)
    assert [info.shape for info in executable.inputs] == [("n", "m"), ("n + m",)]
    value, rest = np.ones((2, 3), np.float32), np.zeros(5, np.float32)
    (found,) = executable.run(value, rest)
    np.testing.assert_array_equal(found.numpy(), [1] * 6 + [0] * 5)
    with pytest.raises(FeedError, match=r"axis 0 is 4; it has to be n . m, which is 5"):
        executable.run(value, rest[:4])
