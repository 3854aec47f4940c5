"""Functions of users that no operator of Relax makes: what must not be merged, or left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from tests.guard import guarded
from tests.tir_schedules.run_generic import BEST, compiled, machine_for
from tir_schedules.generic.schedule import schedule_generic


def result_of(
    function: tirx.PrimFunc, arrays: Sequence[np.ndarray], schedule: str = "generic_injective"
) -> np.ndarray:
    """The last parameter of a function after its loops were written anew by that schedule."""
    scheduled, name = schedule_generic(function, machine_for(BEST))
    assert name == schedule
    result = function.params[-1]
    output = guarded(np.full([int(n) for n in result.shape], np.nan, str(result.dtype)), True)
    compiled(scheduled, BEST)(*(guarded(array, True) for array in arrays), output)
    return output


@T.prim_func(private=True, s_tir=True)
def halves(x: T.Buffer((32,), "float32"), y: T.Buffer((64,), "float32")):  # type: ignore[no-untyped-def]
    both = T.sblock_alloc_buffer((64,), "float32")
    for i in range(32):
        with T.sblock("lower"):
            v = T.axis.spatial(32, i)
            both[v] = x[v] + T.float32(1)
    for i in range(32):
        with T.sblock("upper"):
            v = T.axis.spatial(32, i)
            both[v + 32] = x[v] * T.float32(2)
    for i in range(64):
        with T.sblock("result"):
            v = T.axis.spatial(64, i)
            y[v] = both[v] + both[63 - v]


@T.prim_func(private=True, s_tir=True)
def written_twice(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):  # type: ignore[no-untyped-def]
    value = T.sblock_alloc_buffer((64,), "float32")
    for i in range(64):
        with T.sblock("first"):
            v = T.axis.spatial(64, i)
            value[v] = x[v] + T.float32(1)
    for i in range(64):
        with T.sblock("second"):
            v = T.axis.spatial(64, i)
            value[v] = x[v] * T.float32(2)
    for i in range(64):
        with T.sblock("result"):
            v = T.axis.spatial(64, i)
            y[v] = value[v]


def test_a_value_that_two_nests_write_is_not_computed_by_one() -> None:
    x = np.arange(32, dtype=np.float32)
    both = np.concatenate([x + 1, x * 2])
    np.testing.assert_array_equal(result_of(halves, [x]), both + both[::-1])
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(result_of(written_twice, [x]), x * 2)


@T.prim_func(private=True, s_tir=True)
def product(x: T.Buffer((3, 70), "float32"), y: T.Buffer((3,), "float32")):  # type: ignore[no-untyped-def]
    for i, k in T.grid(3, 70):
        with T.sblock("product"):
            v, w = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = T.float32(2)
            y[v] = y[v] * x[v, w]


@T.prim_func(private=True, s_tir=True)
def total(x: T.Buffer((3, 70), "float32"), y: T.Buffer((3,), "float32")):  # type: ignore[no-untyped-def]
    for i, k in T.grid(3, 70):
        with T.sblock("total"):
            v, w = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = T.float32(2)
            y[v] = y[v] + x[v, w]


def test_what_a_reduction_starts_with_counts_once() -> None:
    """However many lanes add up."""
    x = np.where(np.arange(210).reshape(3, 70) % 7 == 0, 2, 1).astype(np.float32)
    found = result_of(product, [x], "generic_reduction")
    np.testing.assert_array_equal(found, 2 * x.prod(axis=1))
    np.testing.assert_array_equal(result_of(total, [x], "generic_reduction"), 2 + x.sum(axis=1))


@T.prim_func(private=True, s_tir=True)
def sums_of_fives(x: T.Buffer((8, 32), "float32"), y: T.Buffer((8, 32), "float32")):  # type: ignore[no-untyped-def]
    padded = T.sblock_alloc_buffer((10, 32), "float32")
    for i, j in T.grid(T.int64(10), T.int64(32)):
        with T.sblock("padded"):
            v, w = T.axis.remap("SS", [i, j])
            padded[v, w] = T.if_then_else(
                T.And(v >= T.int64(1), v < T.int64(9)), x[v - T.int64(1), w], T.float32(5)
            )
    for i, j, k in T.grid(T.int64(8), T.int64(32), T.int64(3)):
        with T.sblock("sums"):
            v, w, u = T.axis.remap("SSR", [i, j, k])
            with T.init():
                y[v, w] = T.float32(0)
            y[v, w] = y[v, w] + padded[v + u, w]


def test_padding_that_counts_is_summed() -> None:
    x = np.arange(256, dtype=np.float32).reshape(8, 32)
    wide = np.pad(x, ((1, 1), (0, 0)), constant_values=5)
    wanted = wide[:-2] + wide[1:-1] + wide[2:]
    np.testing.assert_array_equal(result_of(sums_of_fives, [x], "generic_reduction"), wanted)
