"""Windows that slide along rows, of dynamic and of static size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, te, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.examples import examples
from tests.guard import guarded
from tests.relay_passes.graphs import compiled
from tests.stand_ins import running
from tests.tir_schedules.generic.test_dynamic_reductions import function_of, lowered
from tests.tir_schedules.generic.test_pool import EPSILON, POOLS, geometries, pooled
from tests.tir_schedules.run_generic import ISAS, random_array, run_guarded
from tir_schedules.generic.dynamic_elements import dynamic_nests
from tir_schedules.generic.fusion import merge_nests
from tir_schedules.generic.nest import read_program
from tir_schedules.generic.schedule import schedule_generic
from tir_schedules.generic.windows import windows_of

op = relax.op
N, HEIGHT, WIDTH = (tirx.Var(name, "int64") for name in ("n", "height", "width"))


@dataclass(frozen=True)
class Pool:
    """A pool and its definition."""

    body: Callable[[relax.Expr], relax.Expr]
    reduce: Callable[..., np.ndarray]
    size: tuple[int, int]
    step: int = 1
    pad: int = 0
    apart: int = 1

    def reference(self, x: np.ndarray, around: float) -> np.ndarray:
        """The pool by its definition in NumPy."""
        wide = np.pad(x, ((0, 0), (0, 0), *[(self.pad, self.pad)] * 2), constant_values=around)
        reach = [(size - 1) * self.apart + 1 for size in self.size]
        windows = np.lib.stride_tricks.sliding_window_view(wide, reach, (2, 3))
        windows = windows[:, :, :: self.step, :: self.step, :: self.apart, :: self.apart]
        return self.reduce(windows, axis=(4, 5))


def _largest(*geometry: object) -> Callable[[relax.Expr], relax.Expr]:
    return lambda x: op.nn.max_pool2d(x, *geometry)


def _mean(counts_padding: bool, *geometry: object) -> Callable[[relax.Expr], relax.Expr]:
    return lambda x: op.nn.avg_pool2d(x, *geometry, count_include_pad=counts_padding)


MAXIMA = {
    "3 by 3": Pool(_largest((3, 3), (2, 2), (1, 1)), np.max, (3, 3), 2, 1),
    "2 by 2": Pool(_largest((2, 2), (2, 2)), np.max, (2, 2), 2),
    "of every second": Pool(_largest((3, 3), (1, 1), (2, 2), (2, 2)), np.max, (3, 3), 1, 2, 2),
    "of more rows than are written out": Pool(
        _largest((9, 2), (3, 3), (1, 1)), np.max, (9, 2), 3, 1
    ),
}
MEANS = {
    "3 by 3": Pool(_mean(False, (3, 3), (2, 2), (1, 1)), np.nanmean, (3, 3), 2, 1),
    "with padding": Pool(_mean(True, (3, 3), (1, 1), (1, 1)), np.mean, (3, 3), 1, 1),
    "5 by 5": Pool(_mean(True, (5, 5), (4, 4)), np.mean, (5, 5), 4),
}
SIZES = [(1, 9, 9), (2, 9, 40), (1, 40, 9), (0, 12, 12), (1, 10, 77)]


def _run(
    pool: Pool, threads: int = 1, isa: str = "avx2", dtype: str = "float32"
) -> Callable[[tvm.runtime.Tensor], tvm.runtime.Tensor]:
    noted: list = []
    machine = Machine("znver4", isa_named(isa), threads)
    mod = lowered(pool.body, (N, 3, HEIGHT, WIDTH), dtype)
    run = compiled(schedule_leftovers(machine, noted)(mod))
    assert [each.kernel for each in noted] == ["generic_reduction"]
    return run


@pytest.mark.parametrize("name", [*MAXIMA, *MEANS])
def test_windows_are_found_and_padding_is_left_out(name: str) -> None:
    """Otherwise another schedule would run: right, but slow."""
    for pool in {"max": MAXIMA.get(name), "mean": MEANS.get(name)}.values():
        if pool is not None:
            (nest,) = dynamic_nests(function_of(pool.body, (N, 3, HEIGHT, WIDTH))).nests
            assert windows_of(nest) is not None


@pytest.mark.parametrize(("isa", "threads"), [("avx2", 1), ("avx512", 2)])
@pytest.mark.parametrize("name", MAXIMA)
def test_maxima(name: str, threads: int, isa: str) -> None:
    run = _run(MAXIMA[name], threads, isa)
    for n, height, width in SIZES:
        x = np.random.default_rng(0).standard_normal((n, 3, height, width)).astype(np.float32)
        wanted = MAXIMA[name].reference(x, -np.inf)
        np.testing.assert_array_equal(run(tvm.runtime.tensor(x)).numpy(), wanted)


@pytest.mark.parametrize(("isa", "threads"), [("avx2", 1), ("avx512", 2)])
@pytest.mark.parametrize("name", MEANS)
def test_means(name: str, threads: int, isa: str) -> None:
    pool, run = MEANS[name], _run(MEANS[name], threads, isa)
    for n, height, width in SIZES:
        x = np.random.default_rng(0).standard_normal((n, 3, height, width)).astype(np.float32)
        wanted = pool.reference(x.astype(np.float64), 0 if pool.reduce is np.mean else np.nan)
        # Sums of 25 numbers at most, each rounded, and a division.
        bound = 26 * np.abs(x).max(initial=1) * np.finfo(np.float32).eps
        result = run(tvm.runtime.tensor(x)).numpy()
        assert result.shape == wanted.shape
        np.testing.assert_allclose(result, wanted, rtol=0, atol=bound)


def test_columns_that_are_cut_off() -> None:
    """A slice after a pool is not its epilogue: at some widths its rows are shorter."""
    pool = MAXIMA["2 by 2"]

    def cut(x: relax.Expr) -> relax.Expr:
        return op.strided_slice(pool.body(x), [3], [0], [(WIDTH - 1) // 2], assume_inbound=True)

    written, _ = schedule_generic(
        function_of(cut, (N, 3, HEIGHT, WIDTH)), Machine("znver4", isa_named("avx2"), 1)
    )
    kernel = running.compiled(written.with_attr("global_symbol", "kernel"), "avx2")["kernel"]
    for n, height, width in SIZES:
        x = np.random.default_rng(1).standard_normal((n, 3, height, width)).astype(np.float32)
        wanted = pool.reference(x, -np.inf)[..., : (width - 1) // 2]
        result = guarded(np.full(wanted.shape, np.nan, np.float32))
        kernel(guarded(x), result)
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("name", MAXIMA)
def test_borders(name: str) -> None:
    """Between unmapped pages: groups of rows and chunks of threads that are not full."""
    function = function_of(MAXIMA[name].body, (N, 3, HEIGHT, WIDTH))
    written, _ = schedule_generic(function, Machine("znver4", isa_named("avx2"), 2))
    kernel = running.compiled(written.with_attr("global_symbol", "kernel"), "avx2")["kernel"]
    for n, height, width in SIZES:
        x = np.random.default_rng(1).standard_normal((n, 3, height, width)).astype(np.float32)
        wanted = MAXIMA[name].reference(x, -np.inf)
        result = guarded(np.full(wanted.shape, np.nan, np.float32))
        kernel(guarded(x), result)
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float64", "float16"])
def test_types(dtype: str) -> None:
    pool, x = MAXIMA["3 by 3"], np.random.default_rng(0).uniform(0, 100, (2, 3, 9, 40))
    x = x.astype(dtype)
    least = np.finfo(dtype).min if dtype.startswith("float") else np.iinfo(dtype).min
    run = compiled(
        schedule_leftovers(Machine("znver3", isa_named("avx2")), [])(
            lowered(pool.body, (N, 3, HEIGHT, WIDTH), dtype)
        )
    )
    wanted = pool.reference(x, least)
    np.testing.assert_array_equal(run(tvm.runtime.tensor(x)).numpy(), wanted)


@pytest.mark.parametrize("name", ["3 by 3", "of more rows than are written out", "mean"])
def test_bfloat16_is_computed_in_float32(name: str) -> None:
    pool = MEANS["3 by 3"] if name == "mean" else MAXIMA[name]
    (nest,) = dynamic_nests(function_of(pool.body, (N, 3, HEIGHT, WIDTH), "bfloat16")).nests
    assert windows_of(nest) is not None
    run = _run(pool, threads=2, dtype="bfloat16")
    for sizes in SIZES:
        x = np.random.default_rng(0).standard_normal((sizes[0], 3, *sizes[1:]))
        x = x.astype(ml_dtypes.bfloat16)
        if name != "mean" and x.size:
            x[0, 1, 2, 3], x[0, 1, 6, 6] = np.nan, np.inf
        wanted = pool.reference(x.astype(np.float64), np.nan if name == "mean" else -np.inf)
        result = run(tvm.runtime.tensor(x)).numpy().astype(np.float64)
        assert result.shape == wanted.shape
        if name != "mean":
            np.testing.assert_array_equal(result, wanted)
            continue
        # The sum and the quotient are rounded to 8 bits, by a share of 2**-8 at most each; before
        # that, 9 numbers add up in float32.
        bound = 10 * np.finfo(np.float32).eps * np.abs(x.astype(np.float64)).max(initial=1)
        np.testing.assert_allclose(result, wanted, rtol=2.0**-7 + 2.0**-15, atol=bound)


def test_what_is_no_number_stays() -> None:
    pool = MAXIMA["3 by 3"]
    run = _run(pool)
    for sign, place in itertools.product((1, -1), ((0, 0), (5, 6), (6, 7), (11, 40))):
        x = np.full((1, 3, 12, 41), -np.inf, np.float32)
        x[0, 1, 3, 3] = np.inf
        x[(0, 2, *place)] = np.copysign(np.float32(np.nan), sign)
        # TVM pads with the lowest number; ONNX's padding is -inf.
        wanted = np.maximum(pool.reference(x, -np.inf), np.finfo(np.float32).min)
        result = run(tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(np.maximum(result, np.finfo(np.float32).min), wanted)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (lambda x: op.sum(x, 1), (N, 64, WIDTH)),  # too many rows
        (lambda x: op.sum(x, 0), (N, 64)),  # the axis is dynamic
        (lambda x: op.nn.max_pool2d(x, (1, 17)), (N, 3, HEIGHT, WIDTH)),  # too many elements
        (lambda x: op.nn.max_pool2d(x, (2, 2), (5, 5)), (N, 3, HEIGHT, WIDTH)),  # too far apart
        (lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"), (N, HEIGHT, WIDTH, 8)),
    ],
)
def test_what_is_left(
    body: Callable[[relax.Expr], relax.Expr], shape: tuple[tirx.Expr | int, ...]
) -> None:
    nests = dynamic_nests(function_of(body, shape)).nests
    assert not any(map(windows_of, nests))


LOWEST = te.min_value("float32")


@pytest.mark.parametrize(
    ("element", "around", "are_windows"),
    [
        (lambda x, row, column, _: x[row, column], LOWEST, True),
        # Padding that counts.
        (lambda x, row, column, _: x[row, column], tirx.const(5, "float32"), False),
        # A condition on the result, not on the column.
        (
            lambda x, row, column, result: tirx.if_then_else(result < 3, x[row, column], LOWEST),
            LOWEST,
            False,
        ),
        # A factor that depends on the result.
        (lambda x, row, column, result: x[row, column] * result.astype("float32"), LOWEST, False),
        # A step of two columns between windows.
        (
            lambda x, row, column, result: te.max(x[row, column], x[row, column + result]),
            LOWEST,
            False,
        ),
    ],
)
def test_what_all_windows_share(
    element: Callable[..., tirx.Expr], around: tirx.Expr, are_windows: bool
) -> None:
    """Each element of a row is computed once for all windows that contain it."""
    x = te.placeholder((HEIGHT, WIDTH), "float32", "x")
    tap = te.reduce_axis((0, 3), "tap")

    def largest(row: tirx.Var, result: tirx.Var) -> tirx.Expr:
        column = result + tap.var - 1
        inside = te.all(column >= 0, column < WIDTH)
        return te.max(te.if_then_else(inside, element(x, row, column, result), around), axis=[tap])

    y = te.compute((HEIGHT, WIDTH), largest)
    (nest,) = dynamic_nests(te.create_prim_func([x, y])).nests
    assert (windows_of(nest) is not None) == are_windows


@examples(20)
@given(
    geometries(),
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(7, 20), st.integers(9, 40)),
    st.sampled_from(["max", "avg include", "avg exclude"]),
    st.sampled_from(ISAS),
    st.booleans(),
)
def test_any_window_along_rows_of_known_size(
    geometry: dict[str, Any], shape: tuple[int, ...], kind: str, isa: str, at_end: bool
) -> None:
    name, count_padding = kind[:3], kind.endswith("include")
    if name == "avg":
        geometry = {**geometry, "dilation": (1, 1)}
    x = random_array(shape, "float32")

    def build(x: relax.Expr) -> relax.Expr:
        return POOLS[name](x, *geometry.values(), count_include_pad=count_padding)

    result, _, _ = run_guarded(build, [x], isa=isa, at_end=at_end)
    wanted = pooled(x.transpose(0, 2, 3, 1), name, **geometry, count_padding=count_padding)
    # A mean of n numbers below 6 in magnitude: n roundings of the sum, three of the division.
    terms = 0 if name == "max" else geometry["size"][0] * geometry["size"][1] + 3
    np.testing.assert_allclose(
        result, wanted.transpose(0, 3, 1, 2), rtol=0, atol=terms * 6 * EPSILON
    )


@pytest.mark.parametrize("width", [3, 8, 15, 16, 17, 40])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_known_size(threads: int, width: int) -> None:
    """Between unmapped pages: rows shorter than a vector, and tails of longer rows."""
    x = random_array((2, 3, 19, width), "float32")
    pool = MAXIMA["3 by 3"]
    result, name, _ = run_guarded(pool.body, [x], threads, "avx512", at_end=width % 2 == 0)
    assert name == "generic_pool"
    np.testing.assert_array_equal(result, pool.reference(x, -np.inf))


@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    [
        (_largest((3, 3), (1, 1), (1, 1)), (1, 4, 14, 14), True),  # padded
        (_largest((3, 3), (2, 2)), (1, 4, 15, 15), True),  # overlapping, with gaps
        (_largest((2, 2), (2, 2)), (1, 4, 14, 14), False),
        (_largest((3, 3)), (1, 4, 16, 16), False),
        (lambda x: op.nn.max_pool1d(x, (3,), (1,), (1,)), (1, 4, 64), False),  # a single row
    ],
)
def test_rows_of_known_size_only_where_that_pays(
    body: Callable[[relax.Expr], relax.Expr], shape: tuple[int, ...], expected: bool
) -> None:
    program = merge_nests(read_program(function_of(body, shape)))
    assert [windows_of(nest) is not None for nest in program.nests if nest.reduce] == [expected]
