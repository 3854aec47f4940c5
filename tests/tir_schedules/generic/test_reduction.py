"""Generic schedules of reductions: any axes, any shape, any ISA, between guard pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm.relax import op

from tests.examples import examples
from tests.tir_schedules.run_generic import (
    ISAS,
    is_parallel,
    is_vectorized,
    random_array,
    run_guarded,
)

EPSILON = float(np.finfo(np.float32).eps)
extents = st.sampled_from([1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 65, 100])

REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (op.sum, np.sum),
    "mean": (op.mean, np.mean),
    "max": (op.max, np.max),
    "min": (op.min, np.min),
}


@examples(60)
@given(
    st.sampled_from(sorted(REDUCTIONS)),
    st.lists(extents, min_size=1, max_size=4).filter(lambda s: np.prod(s) < 30000),
    st.data(),
    st.sampled_from(ISAS),
    st.booleans(),
)
def test_any_axes(name: str, shape: list[int], data: st.DataObject, isa: str, keep: bool) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    build, meaning = REDUCTIONS[name]
    x = random_array(shape, "float32")
    result, _, _ = run_guarded(lambda x: build(x, list(axes), keep), [x], isa=isa)
    expected = meaning(x.astype(float), axis=tuple(axes), keepdims=keep)
    # n * eps * sum of magnitudes bounds a sum of n terms in any order (Higham, section 4.2).
    terms = int(np.prod([shape[axis] for axis in axes])) + 1
    bound = terms * EPSILON * np.sum(np.abs(x), axis=tuple(axes), keepdims=keep)
    assert (np.abs(result - expected) <= (0 if name in ("max", "min") else bound)).all()


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape, axis", [((102, 101), 1), ((101, 102), 0), ((2, 35, 40), 1)])
def test_a_nan_stays_wherever_it_is(isa: str, shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(2).choice([1.0, -2.0, np.inf], shape).astype(np.float32)
    # Each result but the last one has a NaN, in different places.
    rows = np.moveaxis(x, axis, -1)
    length = shape[axis]
    rows[..., :length, :][..., np.arange(length), np.arange(length)] = np.nan
    for name in ("max", "min")[shape[0] % 2 :]:
        build, meaning = REDUCTIONS[name]
        result, schedule, _ = run_guarded(lambda x, op=build: op(x, [axis]), [x], isa=isa)
        assert schedule == "generic_reduction"
        np.testing.assert_array_equal(result, meaning(x, axis=axis))


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16"])
@pytest.mark.parametrize("columns", [700, 1031, 5000])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_beyond_the_caches_are_read_in_order(dtype: str, columns: int, threads: int) -> None:
    x = random_array((6_400_000 // columns, columns), "int32").astype(dtype)
    x[5, 3] = x[-1, -1] = 127
    result, name, func = run_guarded(lambda x: op.max(x, [0]), [x], threads=threads)
    assert name == "generic_reduction"
    assert "accumulator" not in func.script()  # a tile of columns would have one
    assert is_parallel(func) == (threads == 2)
    np.testing.assert_array_equal(result, x.max(0))
    if dtype == "float32":
        x[7, 10] = np.nan
        result, _, _ = run_guarded(lambda x: op.sum(x, [0]), [x], threads=threads)
        expected = x.sum(0, dtype=float)
        # n * eps * sum of magnitudes, as above.
        bound = len(x) * EPSILON * np.abs(x).sum(0, dtype=float)
        assert np.isnan(result[10]) and np.isnan(result).sum() == 1
        assert (np.abs(result - expected) <= bound)[np.arange(columns) != 10].all()


def test_rows_in_the_caches_are_read_by_tiles_of_columns() -> None:
    x = random_array((200, 200), "int32")
    result, _, func = run_guarded(lambda x: op.sum(x, [0]), [x])
    assert "accumulator" in func.script()
    np.testing.assert_array_equal(result, x.sum(0))


@pytest.mark.parametrize("inner", [15, 16, 17, 31, 63, 64, 65, 127, 128, 200])
def test_rows_of_every_length_use_vectors(inner: int) -> None:
    x = random_array((3, inner), "int32")
    result, name, func = run_guarded(lambda x: op.sum(x, [1]), [x])
    assert name == "generic_reduction" and is_vectorized(func)
    np.testing.assert_array_equal(result, x.sum(1))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 17), (6, 16, 64), (7, 9, 65), (13, 33, 130)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_integers_are_exact(
    isa: str, shape: tuple[int, int, int], transposed: bool
) -> None:
    m, k, n = shape
    x = random_array((m, k), "int32")
    y = random_array((n, k) if transposed else (k, n), "int32", 1)
    build = (lambda x, y: op.einsum([x, y], "ij,kj->ik")) if transposed else op.matmul
    result, _, func = run_guarded(build, [x, y], isa=isa)
    np.testing.assert_array_equal(result, x @ (y.T if transposed else y))
    if isa != "scalar" and n > 16:
        assert is_vectorized(func)


@examples(25)
@given(
    st.integers(1, 3),
    st.integers(3, 40),
    st.integers(3, 40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 1),
)
def test_max_pool(channels: int, rows: int, columns: int, size: int, step: int, pad: int) -> None:
    pad = min(pad, size // 2)
    x = random_array((1, channels, rows, columns), "float32")
    result, _, _ = run_guarded(
        lambda x: op.nn.max_pool2d(x, (size, size), (step, step), (pad, pad)), [x]
    )
    low = np.finfo(np.float32).min
    wide = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=low)
    view = np.lib.stride_tricks.sliding_window_view(wide, (size, size), axis=(2, 3))
    np.testing.assert_array_equal(result, view[:, :, ::step, ::step].max((-2, -1)))


@examples(20)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(3, 35), st.integers(1, 2))
def test_convolution_of_integers_is_exact(inputs: int, outputs: int, size: int, step: int) -> None:
    x = random_array((1, inputs, size, size), "int32")
    w = random_array((outputs, inputs, 3, 3), "int32", 1)
    result, _, _ = run_guarded(
        lambda x, w: op.nn.conv2d(x, w, strides=step, padding=1, out_dtype="int32"), [x, w]
    )
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwij,ocij->nohw", view[:, :, ::step, ::step], w)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_argmax_takes_the_first_of_equals(axis: int) -> None:
    x = random_array((40, 50), "int32").astype(np.float32)
    result, _, _ = run_guarded(lambda x: op.argmax(x, axis), [x])
    np.testing.assert_array_equal(result, x.argmax(axis))


@pytest.mark.parametrize("rows", [4, 600])
def test_softmax_shares_one_parallel_loop(rows: int) -> None:
    x = random_array((rows, 65), "float32")
    result, name, func = run_guarded(op.nn.softmax, [x], threads=2)
    assert name == "generic_reduction" and is_vectorized(func)
    assert is_parallel(func) == (rows == 600)
    loops = str(func.script()).count("T.parallel")
    assert loops == (1 if rows == 600 else 0)
    exps = np.exp(x.astype(float) - x.max(1, keepdims=True))
    # 65 roundings of the sum, a few of exp and the division; results are at most 1.
    np.testing.assert_allclose(result, exps / exps.sum(1, keepdims=True), rtol=80 * EPSILON)
