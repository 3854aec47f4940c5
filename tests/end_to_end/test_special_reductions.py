"""Reductions, pools, softmax and norms of rows that contain NaN or infinities, or only these."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder

INF, NAN = np.inf, np.nan
EPSILON = float(np.finfo(np.float32).eps)


def run(model: onnx.ModelProto, x: np.ndarray, **options: Any) -> list[np.ndarray]:
    session = tvm_hybrid.InferenceSession(model, num_threads=1, records=[], **options)
    return [np.asarray(each) for each in session.run(None, {"x": x})]


REDUCTIONS = {"ReduceMax": np.max, "ReduceMin": np.min, "ArgMax": np.argmax, "ArgMin": np.argmin}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8", "int32", "int64"])
def test_rows_of_nothing_but_an_extreme(dtype: str) -> None:
    """Also the index among equal elements: the first or last; NaN precedes all numbers."""
    least, most = (-INF, INF) if dtype[0] == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.full((4, 6, 20), least, dtype)
    x[2:] = most
    x[1, 2, 3] = x[1, 4, 3] = x[2, 5, 19] = x[2, 5, 4] = 1
    if dtype[0] == "f":
        x[3, 4, 7] = x[3, 2, 7] = x[1, 2, 9] = NAN
    builder = OnnxBuilder()
    builder.input("x", x.shape, x.dtype)
    wanted = []
    for (op, meaning), axis, last in itertools.product(REDUCTIONS.items(), (1, 2), (0, 1)):
        shape = tuple(n for i, n in enumerate(x.shape) if i != axis)
        if op.startswith("Reduce"):
            name = builder.node(op, "x", axes=[axis], keepdims=0)
            builder.output(name, shape, x.dtype)
            wanted.append(meaning(x, axis=axis))
            continue
        name = builder.node(op, "x", axis=axis, keepdims=0, select_last_index=last)
        builder.output(name, shape, np.int64)
        flipped = meaning(np.flip(x, axis) if last else x, axis=axis)
        wanted.append(x.shape[axis] - 1 - flipped if last else flipped)
    for result, want in zip(run(builder.model(), x), wanted, strict=True):
        np.testing.assert_array_equal(result, want)


def rows(length: int) -> np.ndarray:
    """f32 rows with every special value at the start, in the middle and at the end."""
    usual = np.linspace(-3, 3, length, dtype=np.float32)
    found = [usual, np.full(length, -INF), np.full(length, NAN), np.full(length, -3.4e38)]
    for value, place in itertools.product((NAN, INF, -INF), (0, length // 2, length - 1)):
        row = usual.copy()
        row[place] = value
        found.append(row)
    masked = np.full(length, -INF)
    masked[length // 3] = 2
    hidden = masked.copy()
    hidden[-1] = NAN
    both = usual.copy()
    both[:2] = INF, -INF
    return np.asarray([*found, masked, hidden, both], np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def layer_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5))


@pytest.mark.sampled
@pytest.mark.parametrize("length", [7, 40, 300])
@pytest.mark.parametrize("fusion", ["coarse", "none"])
def test_rows_with_special_values(length: int, fusion: str) -> None:
    """Softmax of a row is NaN throughout if the row has a NaN or +inf, or is all -inf."""
    x = rows(length)
    builder = OnnxBuilder()
    builder.input("x", x.shape)
    ones = builder.constant(np.ones(length, np.float32))
    transposed = builder.node("Transpose", "x", perm=[1, 0])
    for value in (
        builder.node("Softmax", "x", axis=1),
        builder.node("LogSoftmax", "x", axis=1),
        builder.node("LayerNormalization", "x", ones),
    ):
        builder.output(value, x.shape)
    for op in ("Softmax", "LogSoftmax"):
        builder.output(builder.node(op, transposed, axis=0), x.shape[::-1])
    results = run(builder.model(), x, fusion=fusion)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        wanted = [softmax(wide), log_softmax(wide), layer_norm(wide)]
    # An ordinary row of n terms: each sum rounds n times, exp and log a few times.
    bound = (length + 40) * EPSILON
    results[3:] = [each.T for each in results[3:]]
    for result, want in zip(results, [*wanted, *wanted[:2]], strict=True):
        large = np.abs(wide).max(-1) > 1e38  # of finite rows: their squares overflow in float32
        skip = large & (want is wanted[2]) & np.isfinite(wide).all(-1)
        np.testing.assert_allclose(
            result[~skip], want[~skip], rtol=bound, atol=8 * bound, equal_nan=True
        )


@pytest.mark.sampled
@pytest.mark.parametrize("opset", [12, 17, 18])
def test_logarithms_of_sums_of_powers(opset: int) -> None:
    """-inf if all terms are -inf, inf if one is inf, NaN if one is NaN; in every opset."""
    x = rows(40)
    builder = OnnxBuilder(opset=opset)
    builder.input("x", x.shape)
    for keepdims in (0, 1):
        name = (
            builder.node("ReduceLogSumExp", "x", axes=[-1], keepdims=keepdims)
            if opset < 18
            else builder.node(
                "ReduceLogSumExp", "x", builder.constant(np.array([-1])), keepdims=keepdims
            )
        )
        builder.output(name, (len(x), 1)[: 1 + keepdims])
    builder.output(builder.node("ReduceLogSumExp", "x", keepdims=0), ())
    one_row, kept, whole = run(builder.model(), x)
    with np.errstate(invalid="ignore"):
        wanted = np.logaddexp.reduce(x.astype(np.float64), axis=-1)
    # The sum rounds at most 40 times, exp and log a few times.
    np.testing.assert_allclose(one_row, wanted, rtol=60 * EPSILON, equal_nan=True)
    np.testing.assert_array_equal(kept[:, 0], one_row)
    assert np.isnan(whole)


@pytest.mark.parametrize("opset", [12, 18])
def test_logarithms_of_sums_of_powers_of_dynamic_sizes(opset: int) -> None:
    """Rows of only -inf and empty rows give -inf."""
    builder = OnnxBuilder(opset=opset)
    builder.input("x", ("n", "m"))
    axes = builder.constant(np.array([-1]))
    for keepdims in (0, 1):
        given: dict[str, Any] = {"axes": [-1]} if opset < 18 else {}
        inputs = ("x",) if opset < 18 else ("x", axes)
        builder.output(builder.node("ReduceLogSumExp", *inputs, keepdims=keepdims, **given), None)
    program = tvm_hybrid.compile(builder.model(), num_threads=1, records=[], keep_dynamic=True)
    for x in (rows(40), np.full((2, 4), -INF, np.float32), np.zeros((3, 0), np.float32)):
        dropped, kept = (result.numpy() for result in program.run(x))
        with np.errstate(invalid="ignore"):
            wanted = np.logaddexp.reduce(x.astype(np.float64), axis=-1)
        # The sum rounds at most 40 times, exp and log a few times.
        np.testing.assert_allclose(dropped, wanted, rtol=60 * EPSILON, equal_nan=True)
        np.testing.assert_array_equal(kept[:, 0], dropped)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int8"])
def test_padding_of_a_pool_never_wins(dtype: str) -> None:
    least = -INF if dtype == "float32" else np.iinfo(dtype).min
    x = np.full((2, 19, 7, 9), least, dtype)
    x[1, ::2, 3, 4] = 1
    if dtype == "float32":
        x[1, 5, 0, 0] = x[1, 6, 6, 8] = x[1, 8, 3, 3] = NAN
    builder = OnnxBuilder()
    builder.input("x", x.shape, x.dtype)
    pool = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]}
    builder.output(builder.node("MaxPool", "x", **pool), x.shape, x.dtype)
    padded = np.full((2, 19, 9, 11), least, dtype)
    padded[:, :, 1:-1, 1:-1] = x
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    wanted = [windows.max((-1, -2))]
    if dtype == "float32":
        builder.output(builder.node("GlobalMaxPool", "x"), (2, 19, 1, 1))
        wanted.append(x.max((2, 3), keepdims=True))
    for result, want in zip(run(builder.model(), x), wanted, strict=True):
        np.testing.assert_array_equal(result, want)


@pytest.mark.sampled
@pytest.mark.parametrize("queries, keys", [(20, 24), (20, 2600), (1, 40)])
def test_attention_with_special_scores(queries: int, keys: int) -> None:
    """A NaN score makes the row NaN, although the running maximum may drop it."""
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal((1, 2, n, 16)).astype(np.float32)
        for name, n in zip("qkv", (queries, keys, keys), strict=True)
    }
    feeds["q"][0, 0, queries // 2, 3] = NAN
    mask = feeds["m"] = np.zeros((1, 1, queries, keys), np.float32)
    if queries > 1:
        mask[0, 0, 0, keys // 3] = mask[0, 0, 5, -1] = NAN
        mask[0, 0, 1] = mask[0, 0, 2, :-5] = -INF
        mask[0, 0, 3, 4] = INF
        mask[0, 0, 4] = -3.4e38
    builder = OnnxBuilder()
    for name, array in feeds.items():
        builder.input(name, array.shape)
    transposed = builder.node("Transpose", "k", perm=[0, 1, 3, 2])
    scores = builder.node("MatMul", "q", transposed)
    scores = builder.node("Mul", scores, builder.constant(np.float32(0.25)))
    weights = builder.node("Softmax", builder.node("Add", scores, "m"), axis=3)
    builder.output(builder.node("MatMul", weights, "v"), (1, 2, queries, 16))
    session = tvm_hybrid.InferenceSession(builder.model(), num_threads=1, records=[])
    (result,) = session.run(None, feeds)
    q, k, v, m = (feeds[name].astype(np.float64) for name in "qkvm")
    with np.errstate(all="ignore"):
        wanted = softmax(q @ np.swapaxes(k, -1, -2) / 4 + m) @ v
    # A weighted mean of numbers below 6: sums of `keys` and 16 terms, an exponential of a few ulps.
    bound = 6 * (keys + 60) * EPSILON
    np.testing.assert_allclose(result, wanted, rtol=0, atol=bound, equal_nan=True)
