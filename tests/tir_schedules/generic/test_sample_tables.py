"""Tables of sample positions, which all channels share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.relay_passes.graphs import compiled
from tests.tir_schedules.generic.test_dynamic_reductions import function_of, lowered
from tir_schedules.generic.dynamic_elements import dynamic_nests
from tir_schedules.generic.reads import with_sample_tables

op = relax.op
N, HEIGHT, WIDTH = (tirx.Var(name, "int64") for name in ("n", "height", "width"))


def _resized(method: str) -> Callable[[relax.Expr], relax.Expr]:
    def body(x: relax.Expr) -> relax.Expr:
        size = relax.ShapeExpr([HEIGHT * 2, WIDTH * 3])
        return op.image.resize2d(x, size, layout="NCHW", method=method)

    return body


def _lines(x: np.ndarray, axis: int, factor: int) -> np.ndarray:
    """Linear interpolation along an axis with half pixels, by definition."""
    size = x.shape[axis]
    at = (np.arange(size * factor) + 0.5) / factor - 0.5
    low = np.floor(at).astype(int)
    shape = [-1 if each == axis else 1 for each in range(x.ndim)]
    share = (at - low).reshape(shape)
    first, second = (np.take(x, np.clip(each, 0, size - 1), axis) for each in (low, low + 1))
    return first * (1 - share) + second * share


@pytest.mark.parametrize("threads", [1, 2])
def test_resized_by_lines(threads: int) -> None:
    noted: list = []
    mod = lowered(_resized("linear"), (N, 5, HEIGHT, WIDTH))
    run = compiled(schedule_leftovers(Machine("znver3", isa_named("avx2"), threads), noted)(mod))
    assert [each.kernel for each in noted] == ["generic_injective"]
    for sizes in ((1, 5, 7, 6), (2, 5, 1, 1), (1, 5, 3, 33), (0, 5, 4, 4), (1, 5, 0, 4)):
        x = np.random.default_rng(0).uniform(-1, 1, sizes).astype(np.float32)
        wanted = _lines(_lines(x.astype(np.float64), 2, 2), 3, 3)
        # Weights are differences of 24-bit positions up to 99; four products and sums of them.
        bound = (2 * 99 + 8) * np.finfo(np.float32).eps
        np.testing.assert_allclose(run(tvm.runtime.tensor(x)).numpy(), wanted, rtol=0, atol=bound)


def test_places_and_weights_have_tables() -> None:
    program = with_sample_tables(
        dynamic_nests(function_of(_resized("linear"), (N, 5, HEIGHT, WIDTH)))
    )
    *tables, last = program.nests
    # Two positions and two weights along the last axis; the numbers of rows stay inline.
    assert len(tables) == 4 and last.name == "resize"
    assert all(len(table.spatial) == 1 for table in tables)
    assert all(table.stores[0].buffer in program.temporaries for table in tables)


@pytest.mark.parametrize("body", [op.tanh, lambda x: op.add(x, op.exp(x))])
def test_what_reads_in_order_has_no_tables(body: Callable[[relax.Expr], relax.Expr]) -> None:
    program = dynamic_nests(function_of(body, (N, 5, HEIGHT, WIDTH)))
    assert with_sample_tables(program).nests == program.nests


@pytest.mark.parametrize(("guarded", "channels"), [(False, 4), (True, 4), (False, 3)])
def test_what_may_not_exist_is_not_read(guarded: bool, channels: int) -> None:
    """A table reads at every index, which a guard may forbid; few channels need no table."""
    x = te.placeholder((channels, WIDTH), "float32", "x")
    at = te.placeholder((WIDTH,), "float32", "at")

    def element(channel: tirx.Var, column: tirx.Var) -> tirx.Expr:
        place = te.floor(at[column] * tirx.const(3, "float32") + tirx.const(1, "float32"))
        value = x[channel, place.astype("int64")]
        inside = column < HEIGHT
        return tirx.if_then_else(inside, value, tirx.const(0, "float32")) if guarded else value

    y = te.compute((channels, WIDTH), element)
    height = te.placeholder((HEIGHT,), "float32", "height")  # gives HEIGHT its value
    func = te.create_prim_func([x, at, height, y])
    assert len(with_sample_tables(dynamic_nests(func)).nests) == (
        2 if not guarded and channels > 3 else 1
    )


def test_a_table_has_all_axes_of_its_numbers() -> None:
    """A grid has rows and columns, which channels share."""
    x = te.placeholder((4, WIDTH), "float32", "x")
    at = te.placeholder((HEIGHT, WIDTH), "float32", "at")

    def element(channel: tirx.Var, row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        place = te.floor(at[row, column] * tirx.const(3, "float32"))
        return x[channel, place.astype("int64")]

    y = te.compute((4, HEIGHT, WIDTH), element)
    table, last = with_sample_tables(dynamic_nests(te.create_prim_func([x, at, y]))).nests
    assert [axis.stated for axis in table.spatial] == [HEIGHT, WIDTH]
    assert len(last.spatial) == 3


def test_tables_divide_by_no_size() -> None:
    """The size may be 0 if no element needs the quotient."""
    x = te.placeholder((4, WIDTH), "float32", "x")
    at = te.placeholder((WIDTH,), "float32", "at")
    height = te.placeholder((HEIGHT,), "float32", "height")  # gives HEIGHT its value

    def element(divisor: tirx.Expr, channel: tirx.Var, column: tirx.Var) -> tirx.Expr:
        place = te.floor(at[tirx.floordiv(column, divisor)] * tirx.const(3, "float32"))
        return x[channel, place.astype("int64")]

    for divisor, count in ((tirx.const(2, "int64"), 2), (HEIGHT, 1)):
        y = te.compute((4, WIDTH), partial(element, divisor))
        func = te.create_prim_func([x, at, height, y])
        assert len(with_sample_tables(dynamic_nests(func)).nests) == count
