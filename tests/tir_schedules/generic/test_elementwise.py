"""Generic schedules of elementwise operators: any shape, any ISA, no access outside the arrays."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.special
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.relax import op

from tests.examples import examples
from tests.tir_schedules.run_generic import (
    BEST,
    ISAS,
    assembly,
    is_parallel,
    is_vectorized,
    random_array,
    run_guarded,
)

EPSILON = float(np.finfo(np.float32).eps)
extents = st.sampled_from([1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65])


@st.composite
def broadcast_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(st.lists(extents, min_size=0, max_size=4).filter(lambda s: np.prod(s) < 20000))
    other = [draw(st.sampled_from([extent, 1])) for extent in shape]
    return tuple(shape), tuple(other[draw(st.integers(0, len(other))) :])


@examples(40)
@given(broadcast_shapes(), st.sampled_from(ISAS), st.booleans(), st.sampled_from([1, 2]))
def test_broadcast_is_exact(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], isa: str, at_end: bool, threads: int
) -> None:
    x, y = (random_array(shape, "float32", seed) for seed, shape in enumerate(shapes))
    result, name, func = run_guarded(op.add, [x, y], threads, isa, at_end)
    # A short last axis along which only one of them moves is interleaved.
    assert name in ("generic_injective", "generic_transpose")
    # Every ISA rounds once.
    np.testing.assert_array_equal(result, x + y)
    # Anything with two neighbours in the last axis uses vectors, unless the ISA has none.
    if isa != "scalar" and result.shape and result.shape[-1] > 1:
        assert is_vectorized(func)


@examples(25)
@given(
    st.lists(extents, min_size=1, max_size=3),
    st.data(),
    st.sampled_from(["float32", "int64", "bool", "int8"]),
)
def test_concat_is_exact(shape: list[int], data: st.DataObject, dtype: str) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    shapes = [list(shape) for _ in range(data.draw(st.integers(2, 4)))]
    for part in shapes:
        part[axis] = data.draw(extents)
    arrays = [random_array(part, dtype, seed) for seed, part in enumerate(shapes)]
    result, name, _ = run_guarded(lambda *xs: op.concat(list(xs), axis), arrays)
    assert name in ("generic_injective", "generic_transpose")
    np.testing.assert_array_equal(result, np.concatenate(arrays, axis))


@examples(25)
@given(st.tuples(extents, extents), st.tuples(*[st.integers(0, 3)] * 4))
def test_pad_is_exact(shape: tuple[int, int], by: tuple[int, int, int, int]) -> None:
    x = random_array(shape, "float32")
    result, _, _ = run_guarded(lambda x: op.nn.pad(x, list(by), pad_value=-1.5), [x])
    expected = np.pad(x, (by[:2], by[2:]), constant_values=-1.5)
    np.testing.assert_array_equal(result, expected)


@examples(25)
@given(extents, st.integers(1, 100), st.integers(0, 5), st.integers(1, 4), st.booleans())
def test_slice_is_exact(rows: int, columns: int, start: int, step: int, backwards: bool) -> None:
    x = random_array((rows, columns + start), "float32")
    end = columns + start

    def build(x: relax.Var) -> relax.Expr:
        part = op.strided_slice(x, [1], [start], [end], [step])
        return op.flip(part, 1) if backwards else part

    expected = x[:, start:end:step]
    result, _, _ = run_guarded(build, [x])
    np.testing.assert_array_equal(result, expected[:, ::-1] if backwards else expected)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float32"])
@pytest.mark.parametrize("to", ["bool", "int8", "int32", "int64", "float32"])
def test_cast_is_exact(dtype: str, to: str) -> None:
    if dtype == to:
        to = "float64"
    x = random_array((5, 37), dtype)
    if dtype == "float32":
        x = np.trunc(x * 3)
    result, name, func = run_guarded(lambda x: op.astype(x, to), [x])
    assert name == "generic_injective" and is_vectorized(func)
    np.testing.assert_array_equal(result, x.astype(to))


@pytest.mark.parametrize("elements", [100, 1 << 20])
def test_threads_are_used_where_there_is_enough_work(elements: int) -> None:
    x = random_array((elements,), "float32")
    result, _, func = run_guarded(op.multiply, [x, x + 1], threads=2)
    assert is_parallel(func) == (elements > 100)
    np.testing.assert_array_equal(result, x * (x + 1))


@pytest.mark.parametrize("name", ["exp", "log", "erf", "tanh", "sigmoid", "rsqrt"])
def test_transcendentals_are_vectors_without_library_calls(name: str) -> None:
    build = getattr(op, name)
    x = np.abs(random_array((64, 64), "float32")) + np.float32(0.1)
    result, _, func = run_guarded(build, [x])
    text = assembly(func)
    assert f"{name}f" not in text
    if BEST == "avx512":
        assert "zmm" in text
    meaning = {
        "erf": scipy.special.erf,
        "sigmoid": scipy.special.expit,
        "rsqrt": lambda v: 1 / np.sqrt(v),
    }.get(name) or getattr(np, name)
    # vector_math states below 4 epsilons for each; log is near 0 around 1, so absolute there.
    np.testing.assert_allclose(result, meaning(x.astype(float)), rtol=4 * EPSILON, atol=4 * EPSILON)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_kinds_of_floats_are_found_by_vectors(name: str, dtype: str) -> None:
    limits = np.finfo(dtype)
    x = random_array((5, 67), dtype)
    x[:, ::9] = [np.nan, np.inf, -np.inf, -0.0, limits.max, -limits.max, limits.tiny, -np.nan]
    payloads = np.array([limits.smallest_subnormal, np.inf], dtype)
    x.reshape(-1)[-1] = np.bitwise_or(*payloads.view(f"u{limits.bits // 8}")).view(dtype)
    for isa in ISAS:
        result, _, func = run_guarded(getattr(op, name), [x], isa=isa)
        np.testing.assert_array_equal(result, getattr(np, name)(x), isa)
        # TVM puts a scalar loop in the place of a vector with this call in it.
        assert "isnan" not in func.body.script()
    _, _, func = run_guarded(getattr(op, name), [x[:, :64]], isa="avx512")  # without a tail
    text = assembly(func, "avx512")
    assert "zmm" in text and not re.search("gather|pextr[bq]", text)


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 4.0, -1.0, 0.5, -0.5])
def test_constant_power_is_arithmetic(exponent: float) -> None:
    x = np.abs(random_array((3, 37), "float32")) + np.float32(0.1)
    result, _, func = run_guarded(lambda x: op.power(x, relax.const(exponent, "float32")), [x])
    assert "powf" not in assembly(func)
    # At most three roundings.
    np.testing.assert_allclose(result, x.astype(float) ** exponent, rtol=3 * EPSILON)


def test_pieces_of_the_same_rows_share_their_loop() -> None:
    xs = [random_array((1, 8, 9, channels), "float32", channels) for channels in (17, 30, 5)]
    result, name, func = run_guarded(lambda *xs: op.concat(list(xs), axis=3), xs)
    assert name == "generic_injective" and is_vectorized(func)
    # One loop over the 72 pixels, in which all three pieces of a pixel are written.
    assert str(func.script()).count("T.int64(72)") == 1
    np.testing.assert_array_equal(result, np.concatenate(xs, 3))


@examples(25)
@given(
    st.tuples(extents, extents),
    st.tuples(*[st.integers(1, 9)] * 2),
    st.sampled_from(["float32", "int64", "bool", "int8"]),
    st.sampled_from(ISAS),
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_tile_is_exact(
    shape: tuple[int, int], repeats: tuple[int, int], dtype: str, isa: str, end: bool, threads: int
) -> None:
    x = random_array(shape, dtype)
    result, _, _ = run_guarded(lambda x: op.tile(x, list(repeats)), [x], threads, isa, end)
    np.testing.assert_array_equal(result, np.tile(x, repeats))


@pytest.mark.parametrize("repeats", [(2, 2), (1, 5), (5, 1), (6, 1), (1, 8), (8, 4), (2, 3)])
def test_a_row_is_read_once_for_its_copies(repeats: tuple[int, int]) -> None:
    x = random_array((8, 1000), "float32")
    result, _, func = run_guarded(lambda x: op.tile(x, list(repeats)), [x])
    np.testing.assert_array_equal(result, np.tile(x, repeats))
    # Four copies at most; of a number of them that four, three and two do not divide, one.
    copies = {(1, 5): 1, (5, 1): 1, (6, 1): 3, (2, 3): 2}.get(repeats, 4)
    assert "memcpy" not in assembly(func) or copies == 1
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    row, lanes = 1000 * (8 if repeats[1] == 1 else 1), 32 if copies > 1 else 16
    assert len(stores) == copies * (2 if row % lanes else 1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_pixels_are_repeated_without_arithmetic_on_positions(layout: str, dtype: str) -> None:
    shape, axes = ((1, 5, 6, 70), (2, 3)) if layout == "NCHW" else ((1, 6, 7, 24), (1, 2))
    x = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)
    size = tuple(2 * shape[axis] for axis in axes)
    result, _, func = run_guarded(
        lambda x: op.image.resize2d(
            x,
            size,
            layout=layout,
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        [x],
    )
    assert is_vectorized(func)
    text = str(func.script())
    assert "T.Div" not in text and "T.Cast" not in text
    np.testing.assert_array_equal(result, x.repeat(2, axes[0]).repeat(2, axes[1]))
