"""TIR functions that no Relax operator makes: what must not be merged or left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from tests.guard import guarded
from tests.tir_schedules.run_generic import BEST, compiled, machine_for
from tir_schedules.generic.fusion import merge_nests
from tir_schedules.generic.loops import Plan
from tir_schedules.generic.nest import read_program
from tir_schedules.generic.schedule import schedule_generic
from tir_schedules.generic.transpose import interleaving_of


def result_of(
    function: tirx.PrimFunc, arrays: Sequence[np.ndarray], schedule: str = "generic_injective"
) -> np.ndarray:
    """The last parameter of a function that this schedule rewrote."""
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
    """The initial value counts once, although several lanes add up."""
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


@T.prim_func(private=True, s_tir=True)
def mirrored_sums(x: T.Buffer((8, 32), "float32"), y: T.Buffer((8,), "float32")):  # type: ignore[no-untyped-def]
    sums = T.sblock_alloc_buffer((8,), "float32")
    for i, k in T.grid(T.int64(8), T.int64(32)):
        with T.sblock("sums"):
            v, w = T.axis.remap("SR", [i, k])
            with T.init():
                sums[v] = T.float32(0)
            sums[v] = sums[v] + x[v, w]
    for i in range(T.int64(8)):
        with T.sblock("result"):
            v = T.axis.spatial(T.int64(8), i)
            y[v] = sums[v] - sums[T.int64(7) - v] * T.float32(2)


def test_an_epilogue_reads_its_own_sum_only() -> None:
    x = np.arange(256, dtype=np.float32).reshape(8, 32)
    sums = x.sum(axis=1)
    found = result_of(mirrored_sums, [x], "generic_reduction")
    np.testing.assert_array_equal(found, sums - 2 * sums[::-1])


@T.prim_func(private=True, s_tir=True)
def used_twice(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):  # type: ignore[no-untyped-def]
    a = T.sblock_alloc_buffer((64,), "float32")
    for i in range(T.int64(64)):
        with T.sblock("a"):
            v = T.axis.spatial(T.int64(64), i)
            a[v] = x[v] * T.float32(3) + T.float32(1)
    for i in range(T.int64(64)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(64), i)
            y[v] = a[v] * a[v]


@T.prim_func(private=True, s_tir=True)
def used_twice_inside(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):  # type: ignore[no-untyped-def]
    a = T.sblock_alloc_buffer((64,), "float32")
    for i in range(T.int64(64)):
        with T.sblock("a"):
            v = T.axis.spatial(T.int64(64), i)
            a[v] = x[v] * T.float32(3) + T.float32(1)
    for i in range(T.int64(64)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(64), i)
            y[v] = T.if_then_else(
                v >= T.int64(4), a[v - T.int64(4)] * a[v - T.int64(4)], T.float32(0)
            )


def test_what_a_condition_guards_is_not_computed_before_it() -> None:
    """A value with two uses has a name, which is computed first: here x would be read outside."""
    (nest,) = merge_nests(read_program(used_twice)).nests
    assert len(nest.lets) == 1
    (nest,) = merge_nests(read_program(used_twice_inside)).nests
    assert not nest.lets


@T.prim_func(private=True, s_tir=True)
def turned(x: T.Buffer((3, 64, 64), "float32"), y: T.Buffer((3, 64, 64), "float32")):  # type: ignore[no-untyped-def]
    for p, i, j in T.grid(T.int64(3), T.int64(64), T.int64(64)):
        with T.sblock("y"):
            u, v, w = T.axis.remap("SSS", [p, i, j])
            y[u, v, w] = x[u, w, v]


@T.prim_func(private=True, s_tir=True)
def turned_inside(x: T.Buffer((256, 64), "float32"), y: T.Buffer((6, 64, 64), "float32")):  # type: ignore[no-untyped-def]
    for p, i, j in T.grid(T.int64(6), T.int64(64), T.int64(64)):
        with T.sblock("y"):
            u, v, w = T.axis.remap("SSS", [p, i, j])
            y[u, v, w] = T.if_then_else(
                u % T.int64(3) == T.int64(0), x[u * T.int64(64) + w, v], T.float32(-1)
            )


def test_tiles_read_nothing_that_a_condition_excludes() -> None:
    x = np.arange(3 * 64 * 64, dtype=np.float32).reshape(3, 64, 64)
    found = result_of(turned, [x], "generic_transpose")
    np.testing.assert_array_equal(found, x.transpose(0, 2, 1))
    x = np.arange(4 * 64 * 64, dtype=np.float32).reshape(4, 64, 64)
    found = result_of(turned_inside, [x.reshape(256, 64)])
    np.testing.assert_array_equal(found[::3], x[::3].transpose(0, 2, 1))
    assert (found[[1, 2, 4, 5]] == -1).all()


@T.prim_func(private=True, s_tir=True)
def pairs(x: T.Buffer((288,), "float32"), y: T.Buffer((384,), "float32")):  # type: ignore[no-untyped-def]
    for p, i, j in T.grid(T.int64(3), T.int64(64), T.int64(2)):
        with T.sblock("y"):
            u, v, w = T.axis.remap("SSS", [p, i, j])
            y[u * T.int64(128) + v * T.int64(2) + w] = x[u * T.int64(96) + v + w * T.int64(32)]


@T.prim_func(private=True, s_tir=True)
def pairs_inside(x: T.Buffer((384,), "float32"), y: T.Buffer((768,), "float32")):  # type: ignore[no-untyped-def]
    for p, i, j in T.grid(T.int64(6), T.int64(64), T.int64(2)):
        with T.sblock("y"):
            u, v, w = T.axis.remap("SSS", [p, i, j])
            y[u * T.int64(128) + v * T.int64(2) + w] = T.if_then_else(
                u % T.int64(3) == T.int64(0),
                x[u * T.int64(96) + v + w * T.int64(32)],
                T.float32(-1),
            )


def interleaves(function: tirx.PrimFunc) -> bool:
    """Whether vectors of several rows are interleaved."""
    (nest,) = read_program(function).nests
    return interleaving_of(Plan.of(nest, machine_for(BEST), 1)) is not None


def test_vectors_of_rows_have_nothing_that_a_condition_excludes() -> None:
    assert interleaves(pairs) and not interleaves(pairs_inside)
    x = np.arange(384, dtype=np.float32)
    parts = np.stack([np.stack([part[:64], part[32:]], axis=1) for part in x.reshape(4, 96)])
    found = result_of(pairs, [x[:288]], "generic_transpose")
    np.testing.assert_array_equal(found.reshape(3, 64, 2), parts[:3])
    found = result_of(pairs_inside, [x]).reshape(6, 64, 2)
    np.testing.assert_array_equal(found[::3], parts[::3])
    assert (found[[1, 2, 4, 5]] == -1).all()
