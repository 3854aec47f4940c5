"""Elementwise kernels of dynamic sizes: rows in pieces, periods and joined axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.tirx import ForKind

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.guard import guarded
from tests.tir_schedules.generic.test_dynamic_reductions import function_of
from tests.tir_schedules.run_generic import assembly
from tir_schedules.core.emission import walk
from tir_schedules.generic.dynamic_elements import dynamic_elements, dynamic_nests
from tir_schedules.generic.expressions import calls_of, variables_of
from tir_schedules.generic.nest import NotHandledError
from tir_schedules.generic.reads import with_selects
from tir_schedules.generic.schedule import schedule_generic
from tvm_hybrid.runtime.feeds import tensor_of

N, M = (tirx.Var(name, "int64") for name in "nm")
SIZES = [(1, 1), (3, 40), (40, 3), (17, 16), (33, 49), (0, 5), (5, 0)]

Case = tuple[Callable[[te.Tensor], te.Tensor], Callable[[np.ndarray], np.ndarray]]


def _number(value: int) -> tirx.Expr:
    return tirx.const(value, "int64")


def _one(size: tirx.Expr) -> tirx.Expr:
    return tirx.Max(size, _number(1))


def _reflected(place: tirx.Expr, size: tirx.Expr) -> tirx.Expr:
    before = tirx.if_then_else(place < 2, 2 - place, place - 2)
    return tirx.if_then_else(place < size + 2, before, 2 * size - place)


def _within(i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
    return tirx.all(i >= 1, i <= N, j >= 2, j < M + 2)


def _halves(x: np.ndarray, times: int) -> np.ndarray:
    return np.repeat(np.repeat(x, times, 0), times, 1)


CASES: dict[str, Case] = {
    "tiled": (
        lambda x: te.compute((2 * N, 3 * M), lambda i, j: x[i % _one(N), j % _one(M)]),
        lambda x: np.tile(x, (2, 3)),
    ),
    "tiled many times": (
        lambda x: te.compute((5 * N, 8 * M), lambda i, j: x[i % _one(N), j % _one(M)]),
        lambda x: np.tile(x, (5, 8)),
    ),
    "as often as it has rows": (
        lambda x: te.compute((N, N * M), lambda i, j: x[i, j % _one(M)]),
        lambda x: np.tile(x, (1, x.shape[0])),
    ),
    "tiled behind the first": (
        lambda x: te.compute(
            (N, 2 * M),
            lambda i, j: tirx.if_then_else(j < 1, tirx.const(7.0), x[i, j % _one(M)]),
        ),
        lambda x: np.where(np.arange(2 * x.shape[1]) < 1, np.float32(7), np.tile(x, (1, 2))),
    ),
    "turned": (
        lambda x: te.compute((N, 2 * M), lambda i, j: x[i, (j + 1) % _one(M)]),
        lambda x: np.roll(np.tile(x, (1, 2)), -1, 1),
    ),
    "edges of another size": (
        lambda x: te.compute((N, 2 * N), lambda i, j: x[i, j % _one(M)]),
        lambda x: x[:, np.arange(2 * x.shape[0]) % x.shape[1]],
    ),
    "wrapped": (
        lambda x: te.compute((N, M + 5), lambda i, j: x[i, tirx.floormod(j - 2, _one(M))]),
        lambda x: np.pad(x, ((0, 0), (2, 3)), mode="wrap"),
    ),
    "edges": (
        lambda x: te.compute(
            (N + 1, M + 5),
            lambda i, j: x[
                tirx.Min(i, N - 1), tirx.Max(tirx.Min(j - 2, M - 1), _number(0))
            ],
        ),
        lambda x: np.pad(x, ((0, 1), (2, 3)), mode="edge"),
    ),
    "reflected": (
        lambda x: te.compute((N, M + 4), lambda i, j: x[i, _reflected(j, M)]),
        lambda x: np.pad(x, ((0, 0), (2, 2)), mode="reflect"),
    ),
    "padded": (
        lambda x: te.compute(
            (N + 2, M + 3),
            lambda i, j: tirx.if_then_else(_within(i, j), x[i - 1, j - 2], tirx.const(7.0)),
        ),
        lambda x: np.pad(x, ((1, 1), (2, 1)), constant_values=7),
    ),
    "joined": (
        lambda x: te.compute(
            (N, 2 * M), lambda i, j: tirx.if_then_else(j < M, x[i, j], -x[i, j - M])
        ),
        lambda x: np.concatenate([x, -x], 1),
    ),
    "rows joined": (
        lambda x: te.compute(
            (2 * N, M), lambda i, j: tirx.if_then_else(i < N, x[i, j], -x[i - N, j])
        ),
        lambda x: np.concatenate([x, -x]),
    ),
    "a triangle": (
        lambda x: te.compute(
            (N, M), lambda i, j: tirx.Select(i <= j, x[i, j], tirx.const(0.0))
        ),
        np.triu,
    ),
    "but for the diagonal": (
        lambda x: te.compute(
            (N, M), lambda i, j: tirx.if_then_else(tirx.NE(i, j), x[i, j], tirx.const(0.0))
        ),
        lambda x: x * (1 - np.eye(*x.shape, dtype=x.dtype)),
    ),
    "every second": (
        lambda x: te.compute((N, (M + 1) // 2), lambda i, j: x[i, 2 * j]),
        lambda x: x[:, ::2],
    ),
    "twice": (
        lambda x: te.compute((2 * N, 2 * M), lambda i, j: x[i // 2, j // 2]),
        lambda x: _halves(x, 2),
    ),
    "nine times": (
        lambda x: te.compute((9 * N, 9 * M), lambda i, j: x[i // 9, j // 9]),
        lambda x: _halves(x, 9),
    ),
    "not whole periods": (
        lambda x: te.compute((N, 2 * M - M // 2), lambda i, j: x[i, j // 2]),
        lambda x: np.repeat(x, 2, 1)[:, : 2 * x.shape[1] - x.shape[1] // 2],
    ),
    "backwards": (
        lambda x: te.compute((N, M), lambda i, j: x[i, M - 1 - j]),
        lambda x: x[:, ::-1],
    ),
    "borders in any order": (
        lambda x: te.compute(
            (N, M + 40),
            lambda i, j: tirx.if_then_else(j > N, _number(1), _number(2)).astype("float32")
            + tirx.if_then_else(j < M, x[i, j], tirx.const(-1.0)),
        ),
        lambda x: np.where(np.arange(x.shape[1] + 40) > x.shape[0], np.float32(1), np.float32(2))
        + np.pad(x, ((0, 0), (0, 40)), constant_values=-1),
    ),
    "within a period": (
        lambda x: te.compute((N, tirx.Max(2 * M - 1, _number(0))), lambda i, j: x[i, (j + 1) // 2]),
        lambda x: np.repeat(x, 2, 1)[:, 1:],
    ),
    "periods without elements": (
        lambda x: te.compute((2 * N, 2 * M), lambda i, j: x[i % N, j % M]),
        lambda x: np.tile(x, (2, 2)),
    ),
    "a part of a period": (
        lambda x: te.compute((N, M + M // 2), lambda i, j: x[i, j % M]),
        lambda x: np.tile(x, (1, 2))[:, : x.shape[1] + x.shape[1] // 2],
    ),
    "stretched": (
        lambda x: te.compute((N, M), lambda i, j: x[i, j * 2 // 3]),
        lambda x: x[:, np.arange(x.shape[1]) * 2 // 3],
    ),
    "greater ones": (
        lambda x: te.compute(
            (N, M), lambda i, j: tirx.Select(x[i, j] > 0.5, x[i, j], x[i, M - 1 - j])
        ),
        lambda x: np.where(x > 0.5, x, x[:, ::-1]),
    ),
}  # fmt: skip
WITH_QUESTIONS = ("greater ones", "within a period", "stretched")  # a condition for each element
BEST = isa_named("avx512")
OF_SOME = ("wrapped", "edges", "reflected")  # results have elements although the input has none


def _function(name: str) -> tirx.PrimFunc:
    x = te.placeholder((N, M), "float32", name="x")
    return te.create_prim_func([x, CASES[name][0](x)])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, threads: int) -> None:
    machine = Machine("znver4", isa_named("avx2"), threads)
    scheduled, schedule = dynamic_elements(_function(name), machine)
    assert schedule == "generic_injective"
    run = tvm.compile(scheduled, "llvm")
    for sizes in SIZES:
        if name.startswith(OF_SOME) and 0 in sizes:
            continue
        if name == "reflected" and sizes[1] < 3:  # `_reflected` reflects once only
            continue
        x = np.random.default_rng(0).random(sizes).astype(np.float32)
        wanted = CASES[name][1](x)
        result = tvm.runtime.tensor(np.full(wanted.shape, np.nan, np.float32))
        run(tvm.runtime.tensor(x), result)
        np.testing.assert_array_equal(result.numpy(), wanted)


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("step", [2, 3, 4, -1])
def test_rows_read_in_steps_are_vectors(step: int, isa: str) -> None:
    """Rows shorter than a vector, as long as one, and longer; no element beyond is read."""
    x = te.placeholder((N, M), "float32", name="x")
    size = abs(step)

    def element(i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
        return x[i, step * j] + 1 if step > 0 else x[i, M - 1 - j] + 1

    function = te.create_prim_func([x, te.compute((N, (M + size - 1) // size), element)])
    scheduled, _ = schedule_generic(function, Machine("znver4", isa_named(isa)))
    kinds = {each.kind for each in walk(scheduled.body) if isinstance(each, tirx.For)}
    assert ForKind.VECTORIZED in kinds
    run = tvm.compile(scheduled, "llvm")
    for row in (1, 7, 8, 9, 15, 16, 17, 31, 33):
        for columns in {size * row, max(1, size * (row - 1) + 1)}:
            array = np.random.default_rng(row).random((3, columns)).astype(np.float32)
            for at_end in (True, False):
                result = guarded(np.full((3, row), np.nan, np.float32), at_end)
                run(tensor_of(guarded(array, at_end)), tensor_of(result))
                np.testing.assert_array_equal(result, array[:, ::step] + np.float32(1))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_row_is_read_once_for_its_copies(dtype: str) -> None:
    """Rows shorter than two vectors, as long, and longer; nothing outside is accessed."""
    x = te.placeholder((N, M), dtype, name="x")
    tiled = te.compute((2 * N, 2 * M), lambda i, j: x[i % _one(N), j % _one(M)])
    scheduled, _ = schedule_generic(te.create_prim_func([x, tiled]), Machine("znver4", BEST))
    lanes = 2 * Machine("znver4", BEST).isa.vector_bits // (8 * np.dtype(dtype).itemsize)
    assert _vectors(scheduled) == {lanes}
    run = tvm.compile(scheduled, "llvm")
    for row in (1, lanes - 1, lanes, lanes + 1, 2 * lanes, 3 * lanes - 1):
        array = (100 * np.random.default_rng(row).random((3, row))).astype(dtype)
        for at_end in (True, False):
            result = guarded(np.full((6, 2 * row), 101, dtype), at_end)
            run(tensor_of(guarded(array, at_end)), tensor_of(result))
            np.testing.assert_array_equal(result, np.tile(array, (2, 2)))


def _vectors(function: tirx.PrimFunc) -> set[int]:
    """The extents of a function's vectorised loops."""
    loops = [each for each in walk(function.body) if isinstance(each, tirx.For)]
    return {int(each.extent) for each in loops if each.kind == ForKind.VECTORIZED}


_ZERO = tirx.const(0, "float32")
_FAR = Machine("znver4", isa_named("avx512")).with_numbers(l2_bytes=4096)  # 1024 float32
FAR: dict[str, tuple[Callable[[tirx.Expr], tirx.Expr], set[int]]] = {
    "minus": (lambda x: _ZERO - x, {4}),
    "absolute": (lambda x: tirx.abs(x), {4}),
    "two operations": (lambda x: tirx.Max(x, _ZERO) + 1, {4}),
    "three": (lambda x: tirx.Max(x, _ZERO) * 2 + 1, set()),
    "another width": (lambda x: x.astype("float16"), set()),
    "a copy": (lambda x: x, set()),
}


@pytest.mark.parametrize("name", FAR)
def test_results_beyond_l2_are_narrow_vectors(name: str) -> None:
    element, lanes = FAR[name]
    x = te.placeholder((N,), "float32", name="x")
    function = te.create_prim_func([x, te.compute((N,), lambda i: element(x[i]))])
    scheduled, _ = schedule_generic(function, _FAR)
    assert _vectors(scheduled) == lanes
    if name != "minus":
        return
    run = tvm.compile(scheduled, "llvm")
    for size in (0, 1, 5, 1023, 1024, 1025, 1027):
        array = np.random.default_rng(size).random(size).astype(np.float32)
        for at_end in (True, False):
            result = guarded(np.full(size, np.nan, np.float32), at_end)
            run(tensor_of(guarded(array, at_end)), tensor_of(result))
            np.testing.assert_array_equal(result, -array)


@pytest.mark.parametrize(
    ("size", "threads", "lanes"),
    [(1023, 1, 16), (1024, 1, 4), (1027, 1, 4), (1 << 17, 2, 16), (1 << 20, 2, 4)],
)
def test_known_results_beyond_l2_are_narrow_vectors(size: int, threads: int, lanes: int) -> None:
    x = te.placeholder((size,), "float32", name="x")
    function = te.create_prim_func([x, te.compute((size,), lambda i: _ZERO - x[i])])
    machine = replace(_FAR, threads=threads)
    if threads > 1:
        machine = machine.with_numbers(l2_bytes=1 << 20)  # of each thread
    scheduled, _ = schedule_generic(function, machine)
    assert max(_vectors(scheduled)) == lanes
    array = np.random.default_rng(0).random(size).astype(np.float32)
    result = guarded(np.full(size, np.nan, np.float32), True)
    tvm.compile(scheduled, "llvm")(tensor_of(guarded(array, True)), tensor_of(result))
    np.testing.assert_array_equal(result, -array)


def _beside(
    rows: tirx.Expr | int, left: tirx.Expr | int, right: tirx.Expr | int, dtype: str
) -> tirx.PrimFunc:
    """Concatenates the rows of two tensors."""
    x, y = (te.placeholder((rows, row), dtype, name="x") for row in (left, right))
    z = te.compute(
        (rows, left + right), lambda i, j: tirx.if_then_else(j < left, x[i, j], y[i, j - left])
    )
    return te.create_prim_func([x, y, z])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "bool"])
def test_long_rows_are_copied_to_results_beyond_l2_in_vectors(dtype: str, known: bool) -> None:
    """Rows of 2 KB and shorter ones, beside rows of a few elements."""
    of_bytes, by_string = np.dtype(dtype).itemsize, _FAR.with_numbers(string_copy_cost=1)
    long, lanes = 2048 // of_bytes, 256 // of_bytes
    for rows, left in ((9, long), (4, long + 1), (11, 3 * long - 1), (9, long - 1), (1, 8)):
        sizes = (rows, left, rows) if known else (N, M, N)
        function = _beside(*sizes, dtype)
        scheduled, plain = (schedule_generic(function, each)[0] for each in (_FAR, by_string))
        if dtype != "bool" and (left >= long or not known):
            assert lanes in _vectors(scheduled) - _vectors(plain)
            calls, before = (assembly(each).count("memcpy") for each in (scheduled, plain))
            # With dynamic sizes, both kinds of rows may be short, and the result may fit L2.
            assert calls == 0 < before if known else calls == before + 2
        else:
            assert tvm_ffi.structural_equal(scheduled, plain, map_free_vars=True)
        generator = np.random.default_rng(left)
        x, y = ((3 * generator.random((rows, row))).astype(dtype) for row in (left, rows))
        run = tvm.compile(scheduled, "llvm")
        for at_end in (True, False):
            result = guarded(np.zeros((rows, left + rows), dtype), at_end)
            run(*(tensor_of(guarded(each, at_end)) for each in (x, y)), tensor_of(result))
            np.testing.assert_array_equal(result, np.concatenate([x, y], 1))


@pytest.mark.parametrize("sizes", [(9, 600), (N, M)])
def test_whole_tensors_and_repeated_rows_are_left_to_memcpy(sizes: tuple[Any, Any]) -> None:
    x, row = (te.placeholder(each, "float32", name="x") for each in (sizes, (1, sizes[1])))
    copied = (x, te.compute(sizes, lambda i, j: x[i, j]))
    repeated = (row, te.compute(sizes, lambda i, j: row[0, j]))
    for tensors in (copied, repeated):
        function = te.create_prim_func(list(tensors))
        made = [
            schedule_generic(function, machine)[0]
            for machine in (_FAR, _FAR.with_numbers(string_copy_cost=1))
        ]
        assert tvm_ffi.structural_equal(*made, map_free_vars=True)


def test_rows_that_are_also_read_otherwise_are_loops_over_elements() -> None:
    x = te.placeholder((N, M), "float32", name="x")
    y = te.compute((M, N), lambda i, j: x[j, i] + x[j, tirx.floordiv(i, 2)])
    scheduled, _ = dynamic_elements(
        te.create_prim_func([x, y]), Machine("znver4", isa_named("avx2"))
    )
    kinds = {each.kind for each in walk(scheduled.body) if isinstance(each, tirx.For)}
    assert ForKind.VECTORIZED not in kinds


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_asked_and_divided_for_each_element(name: str) -> None:
    scheduled, _ = dynamic_elements(_function(name), Machine("znver4", isa_named("avx2")))
    found: list[tirx.Expr] = []
    questions = (tirx.Select, tirx.LT, tirx.LE, tirx.EQ, tirx.NE, tirx.Min, tirx.Max)
    for loop in _innermost(scheduled):
        tvm_ffi.structural_walk(
            loop.body, ((*questions, tirx.FloorDiv, tirx.FloorMod), found.append)
        )
        found = [each for each in found if loop.loop_var in variables_of(each)]
        if name in ("twice", "not whole periods") and found:
            # The tail after the last whole period divides.
            assert all(isinstance(division, tirx.FloorDiv) for division in found)
            found = []
        assert not found or name in WITH_QUESTIONS


def _innermost(function: tirx.PrimFunc) -> list[tirx.For]:
    found = [each for each in walk(function.body) if isinstance(each, tirx.For)]
    return [each for each in found if not any(isinstance(e, tirx.For) for e in walk(each.body))]


def test_a_choice_by_value_is_no_branch() -> None:
    function = _function("greater ones").with_attr("global_symbol", "main")
    scheduled, _ = schedule_generic(function, Machine("znver4", isa_named("avx2")))
    built = tvm.compile(scheduled, tvm.target.Target({"kind": "llvm", "mcpu": "znver3"}))
    assert "vblendvps" in built.mod.inspect_source("asm")


@pytest.mark.parametrize(
    "side",
    [
        lambda x, i, j: x[i, j + 1],
        lambda x, i, j: x[i, j - 1],
        lambda x, i, j: x[i, j] * (j // N).astype("float32"),
    ],
    ids=["behind", "before", "divided"],
)
def test_what_may_not_exist_stays_in_a_branch(side: Callable[..., tirx.Expr]) -> None:
    x = te.placeholder((N, M), "float32", name="x")
    zero = tirx.const(0.0)
    result = te.compute((N, M), lambda i, j: tirx.if_then_else(x[i, j] > 0.5, side(x, i, j), zero))
    (nest,) = dynamic_nests(te.create_prim_func([x, result])).nests
    found = with_selects(nest)
    assert calls_of(found.stores[0].value, "if_then_else") and not found.lets


def test_neighbouring_axes_become_one() -> None:
    x = te.placeholder((N, _number(3), M, M), "float32", name="x")
    row = te.placeholder((_number(3),), "float32", name="row")
    result = te.compute(x.shape, lambda n, c, i, j: x[n, c, i, j] * row[c])
    scheduled, _ = dynamic_elements(
        te.create_prim_func([x, row, result]), Machine("znver4", isa_named("avx2"))
    )
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(scheduled.body, (tirx.For, loops.append))
    assert len(loops) == 3


@pytest.mark.parametrize(
    ("body", "shape", "reason"),
    [
        (relax.op.tanh, (4, 16), "all sizes are static"),
        (relax.op.tanh, (N, 16), "rows are of static size"),
        (lambda x: relax.op.sum(x, 0), (N, M), "more than compute elements"),
    ],
)
def test_what_is_left(
    body: Callable[..., relax.Expr], shape: tuple[tirx.Expr | int, ...], reason: str
) -> None:
    with pytest.raises(NotHandledError, match=reason):
        dynamic_elements(function_of(body, shape), Machine("znver4", isa_named("avx2")))
