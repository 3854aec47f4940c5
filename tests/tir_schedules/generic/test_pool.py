"""Generic schedules of pooling, channels last: any window, step, padding and type, guarded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.relax import op

from tests.examples import examples
from tests.tir_schedules.run_generic import (
    ISAS,
    is_parallel,
    is_vectorized,
    lowered,
    random_array,
    run_guarded,
    run_module,
    scheduled,
)
from tir_schedules.generic.expressions import loads_of

EPSILON = float(np.finfo(np.float32).eps)
POOLS: dict[str, Callable[..., Any]] = {"max": op.nn.max_pool2d, "avg": op.nn.avg_pool2d}
Pair = tuple[int, int]
Size = tuple[int, int, int]
Pads = tuple[int, int, int, int]


def pooled(
    x: np.ndarray,
    name: str,
    size: Pair,
    step: Pair,
    pads: tuple[int, int, int, int],
    dilation: Pair = (1, 1),
    count_padding: bool = False,
    outputs: Pair | None = None,
) -> np.ndarray:
    """Pooling in float64 (integers in int64), window by window; `outputs` for the ceiling mode."""
    images, height, width, channels = x.shape
    if outputs is None:
        reach = [(n - 1) * d + 1 for n, d in zip(size, dilation, strict=True)]
        rows = (height + pads[0] + pads[2] - reach[0]) // step[0] + 1
        outputs = (rows, (width + pads[1] + pads[3] - reach[1]) // step[1] + 1)
    wide = x.astype(np.int64 if x.dtype.kind in "iu" else float)
    result = np.zeros((images, *outputs, channels), wide.dtype)
    for i, j in itertools.product(*map(range, outputs)):
        rows_of = [i * step[0] - pads[0] + k * dilation[0] for k in range(size[0])]
        columns_of = [j * step[1] - pads[1] + k * dilation[1] for k in range(size[1])]
        rows_in = [r for r in rows_of if 0 <= r < height]
        columns_in = [c for c in columns_of if 0 <= c < width]
        window = wide[:, rows_in][:, :, columns_in]
        if name == "max":
            result[:, i, j] = window.max((1, 2))
        else:
            # Positions beyond the padding, which the ceiling mode reaches, do not count.
            padded = [
                sum(0 <= r + before < n + before + after for r in positions)
                for positions, n, before, after in (
                    (rows_of, height, pads[0], pads[2]),
                    (columns_of, width, pads[1], pads[3]),
                )
            ]
            number = padded[0] * padded[1] if count_padding else len(rows_in) * len(columns_in)
            result[:, i, j] = window.sum((1, 2)) / number
    return result


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    size = (draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    return {
        "size": size,
        "step": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "pads": tuple(draw(st.integers(0, size[side % 2] - 1)) for side in range(4)),
        "dilation": (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
    }


@examples(20)
@given(
    geometries(),
    st.tuples(st.integers(1, 2), st.integers(7, 12), st.integers(9, 20)),
    st.sampled_from([1, 3, 16, 17, 40, 70]),
    st.sampled_from(["max", "avg include", "avg exclude"]),
    st.sampled_from(ISAS),
    st.booleans(),
)
def test_any_window(
    geometry: dict[str, Any],
    image: tuple[int, int, int],
    channels: int,
    kind: str,
    isa: str,
    at_end: bool,
) -> None:
    name, count_padding = kind[:3], kind.endswith("include")
    if name == "avg":
        geometry = {**geometry, "dilation": (1, 1)}
    x = random_array((*image, channels), "float32")

    def build(x: relax.Expr) -> relax.Expr:
        return POOLS[name](
            x,
            geometry["size"],
            geometry["step"],
            geometry["pads"],
            geometry["dilation"],
            count_include_pad=count_padding,
            layout="NHWC",
        )

    result, _, _ = run_guarded(build, [x], isa=isa, at_end=at_end)
    expected = pooled(x, name, **geometry, count_padding=count_padding)
    # A mean of n numbers below 6 in magnitude: n roundings of the sum, three of the division.
    terms = 0 if name == "max" else geometry["size"][0] * geometry["size"][1] + 3
    np.testing.assert_allclose(result, expected, rtol=0, atol=terms * 6 * EPSILON)


SAME = ((3, 3), (1, 1), (1, 1, 1, 1))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "float16"])
@pytest.mark.parametrize("channels", [3, 64, 100])
def test_maxima_of_every_type_are_exact(dtype: str, channels: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-100 if dtype != "uint8" else 0, 100, (1, 6, 9, channels)).astype(dtype)
    result, name, func = run_guarded(lambda x: op.nn.max_pool2d(x, *SAME, layout="NHWC"), [x])
    assert name == "generic_pool" and is_vectorized(func)
    np.testing.assert_array_equal(result, pooled(x, "max", *SAME))


@pytest.mark.parametrize("name", ["max", "avg"])
def test_bfloat16_is_accumulated_in_f32(name: str) -> None:
    x = random_array((1, 6, 9, 40), "float32").astype(ml_dtypes.bfloat16)
    mod = lowered(lambda x: POOLS[name](x, *SAME, layout="NHWC"), [(x.shape, "bfloat16")])
    mod, schedules, _ = scheduled(mod)
    assert schedules == ["generic_pool"]
    (result,) = run_module(mod, [x])
    expected = pooled(x, name, *SAME)
    # One rounding to 8 bits, besides the roundings of f32.
    bound = np.zeros_like(expected) if name == "max" else np.abs(expected) / 256 + 99 * EPSILON
    assert (np.abs(result.astype(float) - expected) <= bound).all()


def with_nans(shape: Sequence[int], dtype: str, seed: int) -> np.ndarray:
    """Numbers, zeros of both signs, infinities and a few NaN."""
    rng = np.random.default_rng(seed)
    x = rng.choice([0.0, -0.0, 1.5, -2.0, 1e-30, np.inf, -np.inf], shape)
    x[rng.random(shape) < 0.02] = np.nan
    return np.asarray(x.astype(dtype))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "dtype, channels, image, size, step, pads",
    [
        ("float32", 17, (1, 9, 23), (3, 3), (2, 2), (1, 1, 1, 1)),
        ("float32", 70, (2, 12, 12), (3, 3), (1, 1), (0, 0, 0, 0)),
        ("float32", 3, (1, 8, 20), (2, 5), (2, 1), (1, 2, 0, 2)),
        ("float64", 5, (1, 7, 15), (3, 3), (1, 1), (1, 1, 1, 1)),
        ("float16", 16, (1, 7, 15), (3, 3), (1, 1), (1, 1, 1, 1)),
    ],
)
def test_a_nan_is_the_maximum_of_its_windows_alone(
    dtype: str, channels: int, image: Size, size: Pair, step: Pair, pads: Pads
) -> None:
    x = with_nans((*image, channels), dtype, 1)
    result, name, _ = run_guarded(
        lambda x: op.nn.max_pool2d(x, size, step, pads, layout="NHWC"), [x]
    )
    assert name == "generic_pool"
    expected = pooled(x, "max", size, step, pads)
    # Only `reduction_identities` replaces the lowest number by -inf.
    expected[expected == -np.inf] = np.finfo(dtype).min
    np.testing.assert_array_equal(result, expected)


def test_sums_of_integers_are_exact() -> None:
    x = np.random.default_rng(1).integers(0, 256, (1, 8, 8, 48)).astype("int32")
    result, name, _ = run_guarded(
        lambda x: op.nn.avg_pool2d(x, *SAME, count_include_pad=True, layout="NHWC"), [x]
    )
    assert name == "generic_pool"
    np.testing.assert_array_equal(result, pooled(x, "avg", *SAME, count_padding=True).astype(int))


@pytest.mark.sampled
@pytest.mark.parametrize("extent", [7, 8, 9, 10])
@pytest.mark.parametrize("kind", ["max", "avg include", "avg exclude"])
def test_ceiling_mode(extent: int, kind: str) -> None:
    x = random_array((1, extent, extent, 16), "float32")
    size, step, pads = (3, 3), (2, 2), (1, 1, 1, 1)
    name, count = kind[:3], kind.endswith("include")
    result, _, _ = run_guarded(
        lambda x: POOLS[name](
            x, size, step, 1, ceil_mode=True, count_include_pad=count, layout="NHWC"
        ),
        [x],
    )
    outputs = (result.shape[1], result.shape[2])
    expected = pooled(x, name, size, step, pads, count_padding=count, outputs=outputs)
    np.testing.assert_allclose(result, expected, rtol=0, atol=12 * 6 * EPSILON)


def test_no_padded_copy_is_made_and_columns_are_shared() -> None:
    x = random_array((1, 12, 40, 16), "float32")
    _, name, func = run_guarded(lambda x: op.nn.max_pool2d(x, *SAME, layout="NHWC"), [x])
    assert name == "generic_pool"
    text = func.script()
    assert "pad_temp" not in text and "if_then_else" not in text
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(func.body, (tirx.For, loops.append))
    step = next(loop for loop in loops if loop.loop_var.name == "step")
    # Six windows of three columns: eight columns are read, not eighteen.
    assert [load.source.name for load in loads_of(step.body)].count("x0_flat") == 8


def test_rows_are_parallel_where_that_pays() -> None:
    x = random_array((1, 56, 56, 64), "float32")
    result, name, func = run_guarded(
        lambda x: op.nn.relu(op.nn.max_pool2d(x, *SAME, layout="NHWC")), [x], threads=2
    )
    assert name == "generic_pool" and is_parallel(func)
    np.testing.assert_array_equal(result, np.maximum(pooled(x, "max", *SAME), 0))
