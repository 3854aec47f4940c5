"""Loops that stay loops: many iterations, or a data-dependent number; against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray

import tvm_hybrid
from relay_passes.lower_module import count_regions
from relay_passes.pipeline_options import PipelineOptions
from tvm_hybrid.errors import InputValueError, ModelError, UnsupportedOperatorError
from tvm_hybrid.frontend import import_onnx

from .models import SCAN, onnxruntime_run, parsed, random


def _check(text: str, *several: dict[str, NDArray]) -> None:
    """One session gives ONNX Runtime's results for all feeds.

    Values stay near 1 and pass a few hundred operators with one rounding each. Most of them shrink
    earlier errors; 1e-5 allows for a hundred that do not.
    """
    model = parsed(text)
    session = tvm_hybrid.InferenceSession(model, num_threads=1)
    for feeds in several:
        for got, wanted in zip(
            session.run(None, feeds), onnxruntime_run(model, feeds), strict=True
        ):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


_WHILE = """
    agraph (float[2, 3] x, int64 limit, bool yes) => (float[2, 3] last, float[N, 2, 3] made)
    {
        last, made = Loop<body = b (int64 i, bool going, float[2, 3] v)
            => (bool next, float[2, 3] v2, float[2, 3] row)
        {
            stop = Constant<value = int64 {6}> ()
            next = Less(i, stop)
            step = Cast<to = 1>(i)
            bent = Tanh(v)
            v2 = Add(bent, step)
            row = Mul(v2, x)
        }>(limit, yes, x)
    }"""


def test_limit_and_condition_are_fed() -> None:
    cases = [(1, True), (5, True), (100, True), (2**62, True), (0, True), (-3, True), (5, False)]
    _check(
        _WHILE, *({"x": random(2, 3), "limit": np.array(n), "yes": np.array(c)} for n, c in cases)
    )


def test_the_condition_is_computed_from_a_state() -> None:
    text = """
    agraph (float[4] x) => (float[4] last, float[N, 4] made) <bool yes = {1}>
    {
        last, made = Loop<body = b (int64 i, bool going, float[4] v)
            => (bool next, float[4] v2, float[4] v2)
        {
            half = Constant<value = float {0.5}> ()
            v2 = Mul(v, half)
            largest = ReduceMax<keepdims = 0>(v2)
            next = Greater(largest, half)
        }>(, yes, x)
    }"""
    _check(text, {"x": np.full(4, 40, np.float32)}, {"x": np.full(4, 0.1, np.float32)})


def test_bodies_in_bodies() -> None:
    """Loop states passed through unchanged, captured values of all levels, and two equal bodies."""
    inner = """Loop<body = inner (int64 j, bool h, float[2] u) => (bool more, float[2] u2)
            {
                more = Identity(h)
                chosen = If(c) <
                    then_branch = yes () => (float[2] p) { p = Mul(u, w) },
                    else_branch = no () => (float[2] q) { q = Add(u, x) }>
                u2 = Tanh(chosen)
            }>"""
    text = f"""
    agraph (float[2] x, int64 n, int64 k, bool c)
        => (float[2] y, float[2] z, float[P, 2] made, float[2] same)
    <float[2] w = {{0.5, -2.0}}>
    {{
        y, same, made = Loop<body = outer (int64 i, bool g, float[2] v, float[2] keep)
            => (bool next, float[2] v2, float[2] keep, float[2] row)
        {{
            next = Identity(g)
            v2 = {inner}(k, , v)
            row = Add(v2, x)
        }}>(n, , x, x)
        z = {inner}(k, , y)
    }}"""
    _check(
        text,
        *(
            {"x": random(2), "n": np.array(n), "k": np.array(k), "c": np.array(c)}
            for n, k, c in ((3, 2, True), (0, 4, False), (7, 0, True))
        ),
    )


def test_scan_of_many_steps() -> None:
    text = f"""
    agraph (float[4] s, float[3, 200, 4] x, float[200, 4] y, float[4] w)
        => (float[4] last, float[4] count, float[4, 200] down, float[200, 4] up)
    {{
        z = ReduceMax<axes = [0], keepdims = 0>(x)
        {SCAN}(s, s, z, y)
    }}"""
    shapes = {"s": (4,), "x": (3, 200, 4), "y": (200, 4), "w": (4,)}
    _check(text, {name: random(*shape, seed=5) for name, shape in shapes.items()})


_PRODUCTS = """
    agraph (TYPE[4, 8] s, TYPE[4, 8] x) => (TYPE[4, 8] y, TYPE[1000, 8] rows)
    <int64 limit = {1000}, float[8, 8] weights = {WEIGHTS}>
    {
        w = CastLike(weights, s)
        y, rows = Loop<body = b (int64 i, bool g, TYPE[4, 8] a)
            => (bool h, TYPE[4, 8] a2, TYPE[8] r)
        {
            h = Identity(g)
            product = MatMul(a, w)
            total = Add(product, x)
            a2 = Tanh(total)
            first = Constant<value = int64 {0}> ()
            r = Gather<axis = 0>(a2, first)
        }>(limit, , s)
    }"""


def _products(kind: str) -> onnx.ModelProto:
    weights = ", ".join(f"{value:.3f}" for value in random(64) * 0.1)
    return parsed(_PRODUCTS.replace("TYPE", kind).replace("WEIGHTS", weights))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("float", np.float32), ("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)],
)
def test_a_thousand_iterations_of_a_product(kind: str, dtype: type) -> None:
    model = _products(kind)
    feeds = {"s": random(4, 8).astype(dtype), "x": random(4, 8, seed=1).astype(dtype)}
    y, rows = tvm_hybrid.InferenceSession(model, num_threads=1).run(None, feeds)
    weights = onnx.numpy_helper.to_array(model.graph.initializer[1]).astype(dtype)
    wide, values = weights.astype(np.float64), feeds["s"].astype(np.float64)
    expected = []
    for _ in range(1000):
        values = np.tanh(values @ wide + feeds["x"].astype(np.float64))
        expected.append(values[0])
    # A product of eight, a sum and a tanh of values below 5 round 11 times. The next product scales
    # an error by at most `shrunk`; tanh enlarges none.
    shrunk = np.linalg.norm(wide, 2)
    assert shrunk < 0.8
    tolerance = 11 * 5 * float(ml_dtypes.finfo(dtype).eps) / (1 - shrunk)
    np.testing.assert_allclose(y.astype(np.float64), values, rtol=0, atol=tolerance)
    np.testing.assert_allclose(rows.astype(np.float64), expected, rtol=0, atol=tolerance)


def test_operators_of_a_body_form_regions() -> None:
    options = PipelineOptions(tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}))
    ((region, calls),) = count_regions(import_onnx(_products("float")).mod, options)
    assert (region.op, calls) == ("matmul", 1)


def test_an_exported_loop_runs(tmp_path: Path) -> None:
    feeds = {"x": random(2, 3), "limit": np.array(4), "yes": np.array(True)}
    executable = tvm_hybrid.compile(parsed(_WHILE), num_threads=1)
    executable.export(tmp_path / "loop.so")
    loaded = tvm_hybrid.load(tmp_path / "loop.so")
    for got, wanted in zip(loaded.run(feeds), executable.run(feeds), strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


_GROWING = """
    agraph (float[1, 2] x, int64 limit) => (float[N, 2] all)
    {
        LIMIT
        all = Loop<body = b (int64 i, bool going, float[n, 2] v) => (bool next, float[m, 2] v2)
        { next = Identity(going) v2 = Concat<axis = 0>(v, x) }>(count, , x)
    }"""


def test_a_state_that_grows_as_often_as_an_input_says() -> None:
    """The loop is unrolled for each value of the input."""
    text = _GROWING.replace("LIMIT", "count = Identity(limit)")
    with pytest.raises(InputValueError, match="'limit'"):
        import_onnx(parsed(text))
    _check(text, *({"x": random(1, 2), "limit": np.array(count)} for count in (3, 0)))


def test_a_state_that_grows_as_often_as_data_says_is_refused() -> None:
    count = (
        "places = NonZero(x) sizes = Shape<start = 1>(places) count = ReduceSum<keepdims=0>(sizes)"
    )
    with pytest.raises(UnsupportedOperatorError, match="its state 'v'"):
        import_onnx(parsed(_GROWING.replace("LIMIT", count)))


def test_a_loop_that_never_ends_is_refused() -> None:
    text = """
    agraph (float[2] x) => (float[2] y)
    {
        y = Loop<body = b (int64 i, bool going, float[2] v) => (bool next, float[2] v2)
        { next = Identity(going) v2 = Sin(v) }>(, , x)
    }"""
    with pytest.raises(ModelError, match="never ends"):
        import_onnx(parsed(text))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float[1, 3, 6, 6]", "int32[4]"])
def test_states_of_other_kinds(dtype: str) -> None:
    """Images, whose convolutions choose layouts, and integers; limits and counters of one axis."""
    step = "Conv<pads = [1, 1, 1, 1]>(v, w)" if "6" in dtype else "Add(v, v)"
    text = f"""
    agraph ({dtype} x, int64[1] limit) => ({dtype} y, int64[N, 1] counts)
    <float[3, 3, 3, 3] w = {{{", ".join(["0.05"] * 81)}}}>
    {{
        y, counts = Loop<body = b (int64[1] i, bool[1] going, {dtype} v)
            => (bool[1] next, {dtype} v2, int64[1] count)
        {{
            next = Identity(going)
            changed = {step}
            v2 = Sub(changed, x)
            count = Add(i, limit)
        }}>(limit, , x)
    }}"""
    x = random(1, 3, 6, 6) if "6" in dtype else np.arange(4, dtype=np.int32)
    _check(text, {"x": x, "limit": np.array([5])}, {"x": x, "limit": np.array([0])})
