"""Tensors without elements: an empty result is valid, and an empty sum is 0."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import CONTRIB, OnnxBuilder
from tvm_hybrid.cli import main
from tvm_hybrid.errors import FeedError, ShapeError

pytestmark = pytest.mark.turns

F32 = np.float32
RNG = np.random.default_rng(0)
INF, NAN = np.inf, np.nan
BYTE, WEIGHT, INDEX = np.uint8, np.int8, np.int64


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(F32)


# Model inputs for the table below; names with e are empty tensors.
FEEDS: dict[str, np.ndarray] = {
    "e": np.zeros((2, 0, 3), F32),
    "e_rows": np.zeros((0, 4), F32),
    "e_columns": np.zeros((2, 0), F32),
    "e_weight": np.zeros((0, 4), F32),
    "e_ints": np.zeros((2, 0, 3), np.int32),
    "e_bytes": np.zeros((2, 0), np.uint8),
    "e_indices": np.zeros(0, np.int64),
    "e_images": np.zeros((0, 2, 5, 5), F32),
    "e_images_bytes": np.zeros((0, 2, 5, 5), np.uint8),
    "e_channels": np.zeros((1, 0, 5, 5), F32),
    "x": values(2, 4),
    "w": values(4, 4),
    "bias": values(4),
    "three": values(3),
}
X, BIAS = FEEDS["x"], FEEDS["bias"]


def full(shape: tuple[int, ...], number: float, dtype: Any = F32) -> np.ndarray:
    return np.full(shape, number, dtype)


def none(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.zeros(shape, dtype)


def reduced(op: str, number: float, value: str = "e", dtype: Any = F32) -> tuple:
    """A case with a reduction over the axis without elements."""
    return (
        op,
        lambda g: g.node(op, value, g.constant([1]), keepdims=0),
        full((2, 3), number, dtype),
    )


Build = Callable[[OnnxBuilder], str | list[str]]
Case = tuple[str, Build, np.ndarray | list[np.ndarray]]
CASES: list[Case] = [
    reduced("ReduceSum", 0),
    reduced("ReduceProd", 1),
    reduced("ReduceMax", -INF),
    reduced("ReduceMin", INF),
    reduced("ReduceMean", NAN),
    reduced("ReduceL1", 0),
    reduced("ReduceL2", 0),
    reduced("ReduceLogSum", -INF),
    reduced("ReduceLogSumExp", -INF),
    reduced("ReduceSumSquare", 0),
    reduced("ReduceMax", -(2**31), "e_ints", np.int32),
    reduced("ReduceMin", 2**31 - 1, "e_ints", np.int32),
    reduced("ReduceMean", 0, "e_ints", np.int32),
    ("elementwise", lambda g: g.node("Relu", g.node("Add", "e_rows", "bias")), none(0, 4)),
    ("broadcast", lambda g: g.node("Mul", "e_columns", g.constant(full((2, 1), 2))), none(2, 0)),
    ("transpose", lambda g: g.node("Transpose", "e", perm=[2, 1, 0]), none(3, 0, 2)),
    ("where", lambda g: g.node("Where", g.constant([[True]]), "e_rows", "bias"), none(0, 4)),
    ("flatten", lambda g: g.node("Flatten", "e"), none(2, 0)),
    ("reshape", lambda g: g.node("Reshape", "e_rows", g.constant([0, 2, 2])), none(0, 2, 2)),
    (
        "reshape to zero",
        lambda g: g.node("Reshape", "e_rows", g.constant([5, 0, 3]), allowzero=1),
        none(5, 0, 3),
    ),
    ("expand", lambda g: g.node("Expand", "bias", g.constant([0, 4])), none(0, 4)),
    ("tile", lambda g: g.node("Tile", "x", g.constant([1, 0])), none(2, 0)),
    ("constant of shape", lambda g: g.node("ConstantOfShape", g.constant([3, 0])), none(3, 0)),
    (
        "range",
        lambda g: g.node("Range", g.constant(3), g.constant(3), g.constant(1)),
        none(0, dtype=INDEX),
    ),
    ("no zeros", lambda g: g.node("NonZero", g.constant(none(3))), none(1, 0, dtype=INDEX)),
    (
        "compress",
        lambda g: g.node("Compress", g.constant(values(3)), g.constant([False] * 3)),
        none(0),
    ),
    (
        "slice",
        lambda g: g.node("Slice", "x", g.constant([4]), g.constant([9]), g.constant([1])),
        none(2, 0),
    ),
    (
        "split",
        lambda g: g.nodes("Split", 3, "x", g.constant([0, 1, 3]), axis=1),
        [none(2, 0), X[:, :1], X[:, 1:]],
    ),
    ("gather", lambda g: g.node("Gather", "x", "e_indices"), none(0, 4)),
    ("concat of none", lambda g: g.node("Concat", "e_rows", "e_rows", axis=0), none(0, 4)),
    (
        "concat",
        lambda g: g.node("Concat", g.node("Relu", "e_rows"), g.node("Neg", "x"), "x", axis=0),
        np.concatenate([-X, X]),
    ),
    ("matmul M=0", lambda g: g.node("Relu", g.node("MatMul", "e_rows", "w")), none(0, 4)),
    ("matmul N=0", lambda g: g.node("MatMul", "x", g.constant(none(4, 0))), none(2, 0)),
    (
        "matmul K=0",
        lambda g: g.node("Relu", g.node("Add", g.node("MatMul", "e_columns", "e_weight"), "bias")),
        np.broadcast_to(np.maximum(BIAS, 0), (2, 4)),
    ),
    (
        "gemm",
        lambda g: g.node("Gemm", "e_columns", "e_weight", "bias", alpha=2.0, beta=0.5),
        np.broadcast_to(BIAS / 2, (2, 4)),
    ),
    (
        "matmul integer",
        lambda g: g.node("MatMulInteger", "e_bytes", g.constant(none(0, 4, dtype=WEIGHT))),
        none(2, 4, dtype=np.int32),
    ),
    (
        "qlinear matmul",
        lambda g: g.node(
            "QLinearMatMul",
            "e_bytes",
            *scale(g),
            g.constant(none(0, 4, dtype=WEIGHT)),
            *scale(g, 0, WEIGHT),
            *scale(g),
        ),
        full((2, 4), 7, np.uint8),
    ),
    (
        "qlinear add",
        lambda g: g.node(
            "QLinearAdd", "e_bytes", *scale(g), "e_bytes", *scale(g), *scale(g), domain=CONTRIB
        ),
        none(2, 0, dtype=BYTE),
    ),
    (
        "dynamic quantize",
        lambda g: g.nodes("DynamicQuantizeLinear", 3, "e"),
        [none(2, 0, 3, dtype=BYTE), np.array(1, F32), np.array(0, np.uint8)],
    ),
    (
        "conv of no images",
        lambda g: g.node("Conv", "e_images", g.constant(values(3, 2, 3, 3))),
        none(0, 3, 3, 3),
    ),
    (
        "conv of no channels",
        lambda g: g.node("Conv", "e_channels", g.constant(none(3, 0, 3, 3)), "three"),
        np.broadcast_to(FEEDS["three"].reshape(1, 3, 1, 1), (1, 3, 3, 3)),
    ),
    (
        "qlinear conv",
        lambda g: g.node(
            "QLinearConv",
            "e_images_bytes",
            *scale(g),
            g.constant(full((3, 2, 3, 3), 1, WEIGHT)),
            *scale(g, 0, WEIGHT),
            *scale(g),
        ),
        none(0, 3, 3, 3, dtype=BYTE),
    ),
    ("max pool", lambda g: g.node("MaxPool", "e_images", kernel_shape=[2, 2]), none(0, 2, 4, 4)),
    ("average pool", lambda g: g.node("GlobalAveragePool", "e_images"), none(0, 2, 1, 1)),
    (
        "resize",
        lambda g: g.node("Resize", "e_images", "", g.constant([1, 1, 2, 2], F32), mode="linear"),
        none(0, 2, 10, 10),
    ),
    ("softmax", lambda g: g.node("Softmax", "e_columns"), none(2, 0)),
    ("layer norm", lambda g: g.node("LayerNormalization", "e_rows", "bias"), none(0, 4)),
    (
        "pad",
        lambda g: g.node("Pad", "e_columns", g.constant([0, 1, 0, 2]), g.constant(5, F32)),
        full((2, 3), 5),
    ),
    ("crop", lambda g: g.node("Pad", "x", g.constant([0, -1, 0, -3])), none(2, 0)),
    (
        "top k",
        lambda g: g.nodes("TopK", 2, "x", g.constant([0])),
        [none(2, 0), none(2, 0, dtype=INDEX)],
    ),
    (
        "no maximum of no rows",
        lambda g: g.node("ArgMax", "e_rows", axis=1, keepdims=0),
        none(0, dtype=INDEX),
    ),
    (
        "scatter",
        lambda g: g.node("ScatterND", "x", g.constant(none(0, 1, dtype=INDEX)), "e_rows"),
        X,
    ),
    ("einsum", lambda g: g.node("Einsum", *["e_columns"] * 2, equation="ij,kj->ik"), none(2, 2)),
    (
        "lstm",
        lambda g: g.nodes(
            "LSTM",
            2,
            g.node("Reshape", "e_rows", g.constant([0, 1, 4])),
            g.constant(values(1, 8, 4)),
            g.constant(values(1, 8, 2)),
            hidden_size=2,
        ),
        [none(0, 1, 1, 2), none(1, 1, 2)],
    ),
    ("attention without keys", lambda g: heads_of(g, "x", none(1, 0, 4)), none(1, 2, 4)),
    ("attention without queries", lambda g: heads_of(g, "e_rows", values(1, 3, 4)), none(1, 0, 4)),
    (
        "no axes",
        lambda g: g.node("ReduceSum", g.node("Neg", "x"), "e_indices", noop_with_empty_axes=1),
        -X,
    ),
    ("size", lambda g: g.node("Size", "e"), np.array(0)),
]


def scale(g: OnnxBuilder, zero: int = 7, dtype: Any = np.uint8) -> tuple[str, str]:
    """Adds a scale and a zero point."""
    return g.constant(0.5, F32), g.constant(zero, dtype)


def heads_of(g: OnnxBuilder, rows: str, keys: np.ndarray) -> str:
    """Multi-head attention of a single sequence."""
    query = g.node("Unsqueeze", rows, g.constant([0]))
    key = g.constant(keys)
    return g.node("MultiHeadAttention", query, key, key, domain=CONTRIB, num_heads=2)


def table_model() -> tuple[onnx.ModelProto, list[tuple[str, np.ndarray]]]:
    """A model with every case of the table, and the expected outputs."""
    g = OnnxBuilder(opset=18)
    for name, array in FEEDS.items():
        g.input(name, array.shape, array.dtype)
    expected = []
    for label, build, results in CASES:
        names = build(g)
        names, results = ([names], [results]) if isinstance(names, str) else (names, results)
        for name, result in zip(names, results, strict=True):
            g.output(name, result.shape, result.dtype)
            expected.append((label, result))
    return g.model(), expected


@pytest.mark.sampled
@pytest.mark.parametrize("fusion", ["coarse", "fine", "none"])
def test_every_operator(fusion: str) -> None:
    model, expected = table_model()
    results = tvm_hybrid.InferenceSession(model, num_threads=1, fusion=fusion).run(None, FEEDS)
    for (label, wanted), result in zip(expected, results, strict=True):
        assert result.dtype == wanted.dtype, label
        # Nothing is rounded: sums of one element, exact halves, identities.
        np.testing.assert_array_equal(result, wanted, err_msg=label)


HEADS, SIZE = 2, 4
WIDTH = HEADS * SIZE


def decoder() -> onnx.ModelProto:
    """One layer of attention with a cache of keys and values: [batch, heads, past, size]."""
    g = OnnxBuilder()
    x = g.input("x", ("batch", 1, WIDTH))
    apart, joined = g.constant([0, 1, HEADS, SIZE]), g.constant([0, 1, WIDTH])

    def heads(seed: int) -> str:
        product = g.node("MatMul", x, g.constant(weight(seed)))
        return g.node("Transpose", g.node("Reshape", product, apart), perm=[0, 2, 1, 3])

    q, new_k, new_v = map(heads, range(3))
    k, v = (
        g.node("Concat", g.input(name, ("batch", HEADS, "past", SIZE)), new, axis=2)
        for name, new in (("past_k", new_k), ("past_v", new_v))
    )
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    weights = g.node("Softmax", g.node("Mul", scores, g.constant(0.5, F32)), axis=-1)
    mixed = g.node("Transpose", g.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    y = g.node("MatMul", g.node("Reshape", mixed, joined), g.constant(weight(3)))
    g.output(y, ("batch", 1, WIDTH))
    for value in (k, v):
        g.output(value, ("batch", HEADS, "length", SIZE))
    return g.model()


def weight(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(F32)


def attended(tokens: np.ndarray) -> np.ndarray:
    """The decoder's result for the last of the tokens [batch, length, WIDTH], in float64."""
    q, k, v = (
        (tokens @ weight(i).astype(float)).reshape(*tokens.shape[:2], HEADS, SIZE).swapaxes(1, 2)
        for i in range(3)
    )
    scores = np.exp(0.5 * q[:, :, -1:] @ k.swapaxes(2, 3))
    mixed = scores / scores.sum(-1, keepdims=True) @ v
    return mixed.swapaxes(1, 2).reshape(-1, 1, WIDTH) @ weight(3)


def test_a_decoder_begins_with_an_empty_past() -> None:
    session = tvm_hybrid.InferenceSession(decoder(), num_threads=1)
    tokens = values(2, 3, WIDTH)
    past = [none(2, HEADS, 0, SIZE)] * 2
    for step in range(3):
        feeds = {"x": tokens[:, [step]], "past_k": past[0], "past_v": past[1]}
        y, *past = session.run(None, feeds)
        assert past[0].shape == (2, HEADS, step + 1, SIZE)
        # Chained sums of 8, 4, 3 and 8 products, of values up to about 20.
        expected = attended(tokens[:, : step + 1])
        np.testing.assert_allclose(y, expected, rtol=0, atol=23 * 20 * np.finfo(F32).eps)


def test_a_decoder_of_no_sequences() -> None:
    session = tvm_hybrid.InferenceSession(decoder(), shapes={"batch": 0, "past": 2}, num_threads=1)
    past = none(0, HEADS, 2, SIZE)
    y, k, v = session.run(None, {"x": none(0, 1, WIDTH), "past_k": past, "past_v": past})
    assert (y.shape, k.shape, v.shape) == ((0, 1, WIDTH), *[(0, HEADS, 3, SIZE)] * 2)


def mirror(dtype: Any = F32) -> onnx.ModelProto:
    """x: [0, 3], z: [2] -> -x, x again, -z."""
    g = OnnxBuilder()
    x, z = g.input("x", (0, 3), dtype), g.input("z", (2,), dtype)
    g.output(g.node("Neg", x), (0, 3), dtype)
    g.output(g.node("Identity", x), (0, 3), dtype)
    g.output(g.node("Neg", z), (2,), dtype)
    return g.model()


@pytest.mark.parametrize("dtype", [F32, ml_dtypes.bfloat16])
def test_every_way_in_and_out(dtype: Any, tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mirror(dtype), num_threads=1)
    executable.export(tmp_path / "m.so")
    feeds = {"x": np.zeros((0, 3), dtype), "z": np.array([1, 2], dtype)}
    for program in (executable, tvm_hybrid.load(tmp_path / "m.so")):
        session = tvm_hybrid.InferenceSession(program)
        # A view whose rows are not consecutive has no elements either.
        strided = np.zeros((4, 6), dtype)[:0, ::2]
        for x in (feeds["x"], strided):
            neg, same, z = session.run(None, {**feeds, "x": x})
            assert (neg.shape, same.shape) == ((0, 3), (0, 3))
            assert neg.dtype == same.dtype == dtype
            assert z.tolist() == [-1, -2]
        tensors = program.run(feeds)
        assert [tuple(tensor.shape) for tensor in tensors] == [(0, 3), (0, 3), (2,)]
        assert [tuple(t.shape) for t in program.run(*tensors[1:])] == [(0, 3), (0, 3), (2,)]
        assert program.profile(feeds, repeat=1) is not None
        with pytest.raises(FeedError, match=r"'x': expected x: .*\[0, 3\], got .*\[1, 3\]"):
            session.run(None, {**feeds, "x": np.zeros((1, 3), dtype)})


def selection(one_input: bool) -> onnx.ModelProto:
    """Sizes that depend on data make kernels read tensors without elements."""
    g = OnnxBuilder()
    if one_input:
        g.output(g.node("NonZero", g.input("x", (3, 0, 4))), None)
        return g.model()
    boxes, scores = g.input("boxes", (3, 0, 4)), g.input("scores", (3, 4, 0))
    g.output(g.node("NonMaxSuppression", boxes, scores, g.constant([3])), None)
    x, kept = g.input("x", (2, 0, 3)), g.input("kept", (0,), bool)
    g.output(g.node("Compress", x, kept, axis=1), None)
    return g.model()


@pytest.mark.parametrize(("one_input", "shapes"), [(False, [(0, 3), (2, 0, 3)]), (True, [(3, 0)])])
def test_kernels_that_read_nothing(
    one_input: bool, shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    """NumPy gives arrays without elements other strides than kernels expect."""
    model = selection(one_input)
    executable = tvm_hybrid.compile(model, num_threads=1, records=[])
    executable.export(tmp_path / "m.so")
    feeds = {info.name: np.zeros(info.static_shape or (), info.dtype) for info in executable.inputs}
    for program in (executable, tvm_hybrid.load(tmp_path / "m.so")):
        session = tvm_hybrid.InferenceSession(program)
        for _ in range(2):  # the second run may take the short way
            assert [each.shape for each in session.run(None, feeds)] == shapes
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for info in executable.outputs:
            binding.bind_output(info.name)
        session.run_with_iobinding(binding)
        assert [each.shape for each in binding.copy_outputs_to_cpu()] == shapes
        assert [tuple(each.shape) for each in program.run(feeds)] == shapes


def relu() -> onnx.ModelProto:
    """Relu of x: [n, 3]."""
    g = OnnxBuilder()
    g.output(g.node("Relu", g.input("x", ("n", 3))), ("n", 3))
    return g.model()


def test_a_model_of_nothing_at_all(tmp_path: Path) -> None:
    """No kernel remains; a model with one input and one output takes the session's short way."""
    executable = tvm_hybrid.compile(relu(), shapes={"n": 0}, num_threads=1)
    assert not executable.explain()
    executable.export(tmp_path / "m.so")
    for program in (executable, tvm_hybrid.load(tmp_path / "m.so")):
        session = tvm_hybrid.InferenceSession(program)
        for _ in range(3):
            (result,) = session.run(None, {"x": none(0, 3)})
            assert result.shape == (0, 3)


@pytest.mark.parametrize("size", [["--dim", "n=0"], ["--shape", "x=0x3"]])
def test_the_command_line(
    size: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, library = tmp_path / "m.onnx", tmp_path / "m.so"
    onnx.save(relu(), model)
    assert main(["run", str(model), "--json", *size]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"].values()
    assert (output["shape"], output["values"]) == ([0, 3], [])
    assert main(["verify", str(model), *size]) == 0
    assert main(["explain", str(model), *size]) == 0
    if size[0] == "--dim":
        assert main(["bench", str(model), "--peers", "ort", "--threads", "1", *size]) == 0
        assert main(["compile", str(model), "--output", str(library), *size]) == 0
        assert main(["run", str(library)]) == 0
        assert "float32[0, 3]" in capsys.readouterr().out


def test_zero_is_a_size_and_nothing_is_none() -> None:
    """ONNX distinguishes a size of 0 from an absent size by the field's presence."""
    model = mirror()
    with pytest.raises(ShapeError, match=r"fixes dimension 0 of input 'x'.* to 0"):
        tvm_hybrid.compile(model, shapes={"x": (1, 3)})
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    model.graph.output[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    model.graph.output[1].type.tensor_type.shape.dim[0].ClearField("dim_value")
    with pytest.raises(ShapeError, match=r"'x'.*dimension 0 has no value"):
        tvm_hybrid.compile(model)
    assert tvm_hybrid.compile(model, shapes={"x": (0, 3)}).outputs[0].shape == (0, 3)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "shape"),
    [
        ("ArgMax", ["x"], {"axis": 1, "keepdims": 0}, (2,)),
        ("Gather", ["x", "first"], {"axis": 1}, (2, 1)),
        ("Reshape", ["full", "nowhere"], {"allowzero": 1}, (0, 3)),
        ("Expand", ["full", "nowhere"], {}, (0, 3)),
    ],
)
def test_what_has_no_result_is_refused(
    op: str, inputs: list[str], attributes: dict[str, Any], shape: tuple[int, ...]
) -> None:
    g = OnnxBuilder()
    g.input("x", (2, 0))
    g.input("full", (2, 3))
    names = {"first": g.constant([0]), "nowhere": g.constant([0, 3])}
    made = g.node(op, *(names.get(name, name) for name in inputs), **attributes)
    g.output(made, shape, np.int64 if op == "ArgMax" else F32)
    with pytest.raises(ShapeError, match=f"^{op} node"):
        tvm_hybrid.compile(g.model())
