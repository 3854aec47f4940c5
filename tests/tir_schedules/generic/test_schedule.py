"""Every operator that no template takes is scheduled by a rule, with right results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.special
from tvm import relax, tirx
from tvm.relax import op

from tests.tir_schedules.run_generic import (
    Shapes,
    is_parallel,
    is_vectorized,
    lowered,
    random_array,
    run_module,
    scheduled,
)

F32 = "float32"
I64 = "int64"
F32_TENTH = np.float32(0.1)
EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Case:
    """An operator, its inputs, its meaning in numpy, and its expected schedule.

    `terms` counts the roundings in one element: results may differ from float64 by that many
    epsilons of the largest element of `scale` (default: of the result).
    """

    build: Callable[..., Any]
    shapes: Shapes
    meaning: Callable[..., Any]
    schedule: str = "generic_injective"
    terms: int = 8
    scale: float = 1.0
    vectors: bool = True


def number(value: float, dtype: str = F32) -> relax.Expr:
    return relax.const(value, dtype)


def windows(x: np.ndarray, size: int, step: int) -> np.ndarray:
    """The last two axes as (rows, columns, size, size) windows."""
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(-2, -1))
    return view[..., ::step, ::step, :, :]


def padded(x: np.ndarray, by: int, value: float = 0.0) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (by, by), (by, by)), constant_values=value)


def convolved(x: np.ndarray, w: np.ndarray, step: int = 1) -> np.ndarray:
    return np.einsum("nchwij,ocij->nohw", windows(padded(x, 1), 3, step), w)


def normalized(x: np.ndarray, axis: Any, epsilon: float = 1e-5) -> np.ndarray:
    mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    exps = np.exp(x - x.max(axis, keepdims=True))
    return exps / exps.sum(axis, keepdims=True)


def linear_resize(x: np.ndarray) -> np.ndarray:
    """Linear resize to twice the size with half-pixel coordinates."""
    for axis in (-2, -1):
        n = x.shape[axis]
        at = np.clip((np.arange(2 * n) + 0.5) / 2 - 0.5, 0, n - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, n - 1)
        shape = [1] * x.ndim
        shape[axis] = 2 * n
        part = (at - low).reshape(shape)
        x = x.take(low, axis) * (1 - part) + x.take(high, axis) * part
    return x


def rms(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g


REDUCTION = "generic_reduction"
IMAGE = ((1, 5, 13, 13), F32)
SMALLEST = float(np.finfo(np.float32).min)

CASES = {
    "add_relu": Case(
        lambda x, y: op.nn.relu(op.add(x, y)),
        [((37, 41), F32), ((37, 41), F32)],
        lambda x, y: np.maximum(x + y, 0),
    ),
    "broadcast": Case(op.multiply, [((2, 3, 5, 7), F32), ((3, 1, 7), F32)], lambda x, y: x * y),
    "gelu": Case(
        op.nn.gelu,
        [((33, 50), F32)],
        lambda x: x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2))),
        scale=4.0,
    ),
    "gelu_tanh": Case(
        op.nn.gelu_tanh,
        [((33, 50), F32)],
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        scale=4.0,
    ),
    "silu": Case(op.nn.silu, [((33, 50), F32)], lambda x: x / (1 + np.exp(-x)), scale=4.0),
    "where": Case(
        lambda m, x: op.where(m, x, number(-np.inf)),
        [((9, 130), "bool"), ((9, 130), F32)],
        lambda m, x: np.where(m, x, -np.inf),
    ),
    "equal": Case(
        lambda x: op.astype(op.equal(x, number(2, I64)), F32),
        [((9, 130), I64)],
        lambda x: (x == 2).astype(float),
    ),
    "mask": Case(
        lambda m: op.multiply(
            op.subtract(number(1.0), op.astype(op.expand_dims(m, [1, 2]), F32)), number(-1e9)
        ),
        [((2, 130), I64)],
        lambda m: ((1.0 - m) * -1e9)[:, None, None, :],
        scale=4e9,
    ),
    "bool_to_float": Case(
        lambda m: op.astype(m, F32), [((9, 130), "bool")], lambda m: m.astype(float)
    ),
    "logical": Case(
        lambda a, b: op.logical_and(a, op.logical_not(b)),
        [((9, 130), "bool"), ((9, 130), "bool")],
        lambda a, b: a & ~b,
    ),
    "clip": Case(lambda x: op.clip(x, 0, 1), [((4, 50), F32)], lambda x: np.clip(x, 0, 1)),
    "isnan": Case(op.isnan, [((4, 50), F32)], np.isnan),
    "quantize": Case(
        lambda x: op.quantize(x, number(0.1), number(3, "int8"), axis=-1, out_dtype="int8"),
        [((4, 50), F32)],
        lambda x: np.clip(np.round(x.astype(F32) / F32_TENTH) + 3, -128, 127),
    ),
    "floor_mod": Case(op.floor_mod, [((9, 130), I64), ((9, 130), I64)], lambda x, y: x % y),
    "power": Case(
        lambda x: op.tanh(op.power(x, number(2.0))), [((9, 130), F32)], lambda x: np.tanh(x * x)
    ),
    "sum": Case(
        lambda x: op.sum(x, axis=[1]), [((8, 129), F32)], lambda x: x.sum(1), REDUCTION, 129
    ),
    "sum_all": Case(op.sum, [((8, 9, 10), F32)], np.sum, REDUCTION, 720),
    "mean": Case(
        lambda x: op.mean(x, axis=[-1], keepdims=True),
        [((7, 768), F32)],
        lambda x: x.mean(-1, keepdims=True),
        REDUCTION,
        768,
    ),
    "mean_outer": Case(
        lambda x: op.mean(x, axis=[0, 2]),
        [((4, 16, 50), F32)],
        lambda x: x.mean((0, 2)),
        REDUCTION,
        200,
    ),
    "max_middle": Case(
        lambda x: op.max(x, axis=[1]), [((8, 33, 20), F32)], lambda x: x.max(1), REDUCTION
    ),
    "prod": Case(
        lambda x: op.prod(x, axis=[1]), [((5, 7), F32)], lambda x: x.prod(1), REDUCTION, scale=9.0
    ),
    "argmax": Case(
        lambda x: op.argmax(x, axis=1),
        [((8, 129), F32)],
        lambda x: x.argmax(1),
        REDUCTION,
        vectors=False,
    ),
    "argmin_outer": Case(
        lambda x: op.argmin(x, axis=0), [((9, 130), F32)], lambda x: x.argmin(0), REDUCTION
    ),
    "variance": Case(
        lambda x: op.variance(x, axis=[-1]), [((8, 129), F32)], lambda x: x.var(-1), REDUCTION, 129
    ),
    "std": Case(lambda x: op.std(x, axis=[2, 3]), [IMAGE], lambda x: x.std((2, 3)), REDUCTION, 169),
    "softmax": Case(op.nn.softmax, [((2, 8, 129), F32)], softmax, REDUCTION, 129),
    "softmax_channels": Case(
        lambda x: op.nn.softmax(x, axis=1), [IMAGE], lambda x: softmax(x, 1), REDUCTION, 13
    ),
    "log_softmax": Case(
        op.nn.log_softmax, [((8, 129), F32)], lambda x: np.log(softmax(x)), REDUCTION, 129
    ),
    "layer_norm": Case(
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
        [((8, 129), F32), ((129,), F32), ((129,), F32)],
        lambda x, g, b: normalized(x, -1) * g + b,
        REDUCTION,
        258,
        scale=16.0,
    ),
    "rms_norm": Case(
        lambda x, g: op.nn.rms_norm(x, g, axes=[-1]),
        [((8, 129), F32), ((129,), F32)],
        rms,
        REDUCTION,
        129,
        scale=16.0,
    ),
    "group_norm": Case(
        lambda x, g, b: op.nn.group_norm(x, g, b, 4, 1, [2, 3]),
        [((1, 8, 7, 7), F32), ((8,), F32), ((8,), F32)],
        lambda x, g, b: (
            normalized(x.reshape(1, 4, 98), -1).reshape(1, 8, 7, 7) * g[:, None, None]
            + b[:, None, None]
        ),
        REDUCTION,
        196,
        scale=16.0,
    ),
    "batch_norm": Case(
        lambda x, g, b, m, v: op.nn.batch_norm(x, g, b, m, op.exp(v), axis=1, training=False)[0],
        [IMAGE, *[((5,), F32)] * 4],
        lambda x, g, b, m, v: (
            (x - m[:, None, None]) / np.sqrt(np.exp(v) + 1e-5)[:, None, None] * g[:, None, None]
            + b[:, None, None]
        ),
        scale=64.0,
    ),
    "take": Case(
        lambda x, i: op.take(x, i, axis=0), [((10, 100), F32), ((1, 12), I64)], lambda x, i: x[i]
    ),
    "gather_elements": Case(
        lambda x, i: op.gather_elements(x, i, axis=1),
        [((8, 40), F32), ((8, 16), I64)],
        lambda x, i: np.take_along_axis(x, i, 1),
        vectors=False,
    ),
    "gather_nd": Case(op.gather_nd, [((8, 128), F32), ((3, 1), I64)], lambda x, i: x[i[:, 0]]),
    "one_hot": Case(
        lambda i: op.one_hot(
            i,
            relax.prim_value(tirx.const(1.0, F32)),
            relax.prim_value(tirx.const(0.0, F32)),
            40,
            -1,
        ),
        [((8,), I64)],
        lambda i: np.eye(40)[i],
    ),
    "concat": Case(
        lambda x, y, z: op.concat([x, y, z], axis=1),
        [((4, 5, 7), F32), ((4, 3, 7), F32), ((4, 1, 7), F32)],
        lambda *xs: np.concatenate(xs, 1),
    ),
    "concat_exp": Case(
        lambda x, y: op.nn.relu(op.concat([op.exp(x), y], axis=-1)),
        [((4, 33), F32), ((4, 21), F32)],
        lambda x, y: np.maximum(np.concatenate([np.exp(x), y], -1), 0),
        scale=32.0,
    ),
    "split": Case(
        lambda x: op.split(x, 3, axis=-1), [((4, 36), F32)], lambda x: list(np.split(x, 3, -1))
    ),
    "slice": Case(
        lambda x: op.strided_slice(x, [1], [1], [90], [2]), [((4, 91), F32)], lambda x: x[:, 1:90:2]
    ),
    "flip": Case(lambda x: op.flip(x, 1), [((4, 37), F32)], lambda x: x[:, ::-1]),
    "tile": Case(lambda x: op.tile(x, (2, 3)), [((4, 35), F32)], lambda x: np.tile(x, (2, 3))),
    "repeat": Case(
        lambda x: op.repeat(x, 2, 1),
        [((4, 35), F32)],
        lambda x: x.repeat(2, 1),
        "generic_transpose",
    ),
    "tril": Case(op.tril, [((20, 20), F32)], np.tril),
    "transpose_outer": Case(
        lambda x: op.permute_dims(x, [0, 2, 1, 3]),
        [((1, 9, 5, 32), F32)],
        lambda x: x.transpose(0, 2, 1, 3),
    ),
    "transpose": Case(
        lambda x: op.permute_dims(x, [1, 0]), [((37, 53), F32)], np.transpose, "generic_transpose"
    ),
    "reshape": Case(
        lambda x: op.reshape(x, (4, 3, 35)), [((4, 105), F32)], lambda x: x.reshape(4, 3, 35)
    ),
    "pad": Case(
        lambda x: op.nn.pad(x, [0, 0, 0, 0, 1, 1, 2, 2]),
        [IMAGE],
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2))),
    ),
    "resize_nearest": Case(
        lambda x: op.image.resize2d(x, (26, 26), method="nearest_neighbor", layout="NCHW"),
        [IMAGE],
        lambda x: x.repeat(2, 2).repeat(2, 3),
        vectors=False,
    ),
    "resize_linear": Case(
        lambda x: op.image.resize2d(x, (26, 26), method="linear", layout="NCHW"),
        [IMAGE],
        linear_resize,
        scale=8.0,
        vectors=False,
    ),
    "max_pool": Case(
        lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)),
        [IMAGE],
        lambda x: windows(padded(x, 1, SMALLEST), 3, 2).max((-2, -1)),
        "generic_pool",
    ),
    "avg_pool": Case(
        lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), count_include_pad=True),
        [IMAGE],
        lambda x: windows(padded(x, 1), 3, 2).mean((-2, -1)),
        "generic_pool",
        9,
    ),
    "global_pool": Case(
        lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)),
        [IMAGE],
        lambda x: x.mean((2, 3), keepdims=True),
        REDUCTION,
        169,
    ),
    "conv2d": Case(
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1), b)),
        [IMAGE, ((7, 5, 3, 3), F32), ((1, 7, 1, 1), F32)],
        lambda x, w, b: np.maximum(convolved(x, w) + b, 0),
        REDUCTION,
        46,
        scale=64.0,
    ),
    "conv2d_strided": Case(
        lambda x, w: op.nn.conv2d(x, w, strides=2, padding=1),
        [IMAGE, ((7, 5, 3, 3), F32)],
        lambda x, w: convolved(x, w, 2),
        REDUCTION,
        45,
        scale=64.0,
    ),
    "depthwise": Case(
        lambda x, w: op.nn.conv2d(x, w, padding=1, groups=5),
        [IMAGE, ((5, 1, 3, 3), F32)],
        lambda x, w: np.einsum("nchwij,cij->nchw", windows(padded(x, 1), 3, 1), w[:, 0]),
        REDUCTION,
        9,
        scale=16.0,
    ),
    "conv1d": Case(
        lambda x, w: op.nn.conv1d(x, w),
        [((1, 8, 34), F32), ((16, 8, 3), F32)],
        lambda x, w: np.einsum(
            "nctk,ock->not", np.lib.stride_tricks.sliding_window_view(x, 3, axis=-1), w
        ),
        REDUCTION,
        24,
        scale=32.0,
    ),
    "matmul": Case(
        lambda x, y: op.nn.relu(op.matmul(x, y)),
        [((13, 48), F32), ((48, 70), F32)],
        lambda x, y: np.maximum(x @ y, 0),
        REDUCTION,
        48,
        scale=64.0,
    ),
    "matmul_int": Case(
        lambda x, y: op.matmul(x, y),
        [((13, 48), "int32"), ((48, 70), "int32")],
        lambda x, y: x @ y,
        REDUCTION,
    ),
    "einsum": Case(
        lambda x, y: op.einsum([x, y], "bij,bkj->bik"),
        [((2, 9, 49), F32), ((2, 11, 49), F32)],
        lambda x, y: np.einsum("bij,bkj->bik", x, y),
        REDUCTION,
        49,
        scale=64.0,
    ),
    "scalar": Case(
        lambda x, y: op.exp(op.add(x, y)),
        [((), F32), ((), F32)],
        lambda x, y: np.exp(x + y),
        scale=16.0,
        vectors=False,
    ),
    "one_element": Case(
        lambda x: op.nn.relu(x), [((1, 1), F32)], lambda x: np.maximum(x, 0), vectors=False
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_operator_is_scheduled_and_right(name: str) -> None:
    case = CASES[name]
    mod, names, funcs = scheduled(lowered(case.build, case.shapes))
    assert names and case.schedule in names and "generic_serial" not in names
    assert not any(map(is_parallel, funcs))
    if case.vectors:
        assert any(map(is_vectorized, funcs))
    arrays = [random_array(shape, dtype, seed) for seed, (shape, dtype) in enumerate(case.shapes)]
    results = run_module(mod, arrays)
    wide = [array.astype(float) if array.dtype == F32 else array for array in arrays]
    expected = case.meaning(*wide)
    expected = expected if isinstance(expected, list) else [expected]
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        if result.dtype == F32:
            bound = case.terms * EPSILON * case.scale
            np.testing.assert_allclose(result, wanted, rtol=bound, atol=bound)
        else:
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("name", ["cumsum", "scatter_elements"])
def test_operator_with_loops_of_its_own_is_serial_on_one_thread(name: str) -> None:
    own_loops: dict[str, tuple[Callable[..., Any], Shapes]] = {
        "cumsum": (lambda x: op.cumsum(x, axis=1), [((4, 12), F32)]),
        "scatter_elements": (
            lambda x, i, u: op.scatter_elements(x, i, u, axis=0),
            [((8, 4), F32), ((1, 4), I64), ((1, 4), F32)],
        ),
    }
    build, shapes = own_loops[name]
    mod, names, funcs = scheduled(lowered(build, shapes))
    assert set(names) == {"generic_serial"}
    assert not any(map(is_parallel, funcs))
    arrays = [random_array(shape, dtype, seed) for seed, (shape, dtype) in enumerate(shapes)]
    (result,) = run_module(mod, arrays)
    if name == "cumsum":
        expected = arrays[0].cumsum(1, dtype=float)
    else:
        expected = arrays[0].copy()
        np.put_along_axis(expected, arrays[1], arrays[2], 0)
    # At most 12 roundings of partial sums below 16.
    np.testing.assert_allclose(result, expected, rtol=0, atol=12 * 16 * EPSILON)
