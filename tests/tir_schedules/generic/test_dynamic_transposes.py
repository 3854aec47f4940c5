"""Transposes with dynamic sizes, in blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.guard import guarded
from tests.relay_passes.graphs import compiled
from tests.stand_ins import running
from tests.tir_schedules.generic.test_dynamic_reductions import function_of, lowered
from tir_schedules.generic.nest import NotHandledError
from tir_schedules.generic.schedule import dynamic_transposes, schedule_generic

op = relax.op
N, M = (tirx.Var(name, "int64") for name in "nm")
SIZES = [(1, 1), (3, 40), (40, 3), (17, 16), (0, 5), (33, 49)]

CASES: dict[str, tuple[Callable[..., relax.Expr], Callable[..., np.ndarray]]] = {
    "two axes": (op.permute_dims, lambda x: x.T),
    "with more": (lambda x: op.nn.relu(op.permute_dims(x)), lambda x: np.maximum(x.T, 0)),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, threads: int) -> None:
    body, reference = CASES[name]
    noted: list = []
    machine = Machine("znver4", isa_named("avx2"), threads)
    run = compiled(schedule_leftovers(machine, noted)(lowered(body, (N, M))))
    assert [each.kernel for each in noted] == ["generic_transpose"]
    for sizes in SIZES:
        x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
        result = run(tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(result, reference(x))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "int32", "float64", "bool"])
def test_types(dtype: str) -> None:
    """Elements of 8, 16 and 32 bits are transposed in registers, others are not."""
    mod = lowered(op.permute_dims, (N, M), dtype)
    machine = Machine("znver4", isa_named("avx2"))
    mod = schedule_leftovers(machine, noted := [])(mod)
    assert [each.kernel for each in noted] == ["generic_transpose"]
    in_registers = "_tile in " in mod["transpose"].script()
    assert in_registers == (dtype not in ("float64", "bool"))
    run = compiled(mod)
    for sizes in (*SIZES, (31, 32), (8, 97)):
        values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 99, sizes)
        values = values.astype(dtype)
        np.testing.assert_array_equal(run(tvm.runtime.tensor(values)).numpy(), values.T)


@pytest.mark.parametrize("channels", [3, 4, 24])
def test_static_channels_of_dynamic_images(channels: int) -> None:
    """Three channels are too few for a vector."""
    mod = lowered(lambda x: op.permute_dims(x, (0, 2, 3, 1)), (N, channels, M, M))
    mod = schedule_leftovers(Machine("znver4", isa_named("avx2")), [])(mod)
    assert ("_tile in " in mod["transpose"].script()) == (channels > 3)
    run = compiled(mod)
    for n, m in ((1, 7), (2, 19)):
        x = np.random.default_rng(0).standard_normal((n, channels, m, m)).astype(np.float32)
        np.testing.assert_array_equal(run(tvm.runtime.tensor(x)).numpy(), x.transpose(0, 2, 3, 1))


LINES: dict[str, tuple[tuple[tirx.Var | int, ...], tuple[int, ...], list[tuple[int, ...]]]] = {
    "to channels last": (
        (N, 80, M, M),
        (0, 2, 3, 1),
        [(2, 80, m, m) for m in (1, 7, 8, 15, 16, 17, 31, 48, 81)],
    ),
    "from channels last": (
        (N, M, M, 80),
        (0, 3, 1, 2),
        [(2, m, m, 80) for m in (1, 7, 8, 15, 16, 17, 31, 48, 81)],
    ),
    "both axes dynamic": ((N, M), (1, 0), [(16, 16), (16, 80), (80, 17), (259, 300), (16, 257)]),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", LINES)
def test_tiles_of_whole_lines(name: str, threads: int) -> None:
    """Tiles of whole cache lines where they divide an axis well, else of half lines; four adjacent
    tiles follow each other along channels or along pixels."""
    shape, order, all_sizes = LINES[name]
    function = function_of(lambda x: op.permute_dims(x, order), shape)
    written, _ = schedule_generic(function, Machine("znver4", isa_named("avx512"), threads))
    assert written.script().count("for run in ") == (len(shape) == 4)
    kernel = running.compiled(written.with_attr("global_symbol", "kernel"), "avx512")["kernel"]
    for sizes in all_sizes:
        x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
        wanted = x.transpose(order)
        result = guarded(np.full(wanted.shape, np.nan, np.float32))
        kernel(guarded(x), result)
        np.testing.assert_array_equal(result, wanted)


def test_no_tiles_without_wide_vectors() -> None:
    func = function_of(op.permute_dims, (N, M))
    assert "_tile in " not in dynamic_transposes(func, Machine("", isa_named("scalar")))[0].script()


@pytest.mark.parametrize("order", [(0, 3, 1, 2), (3, 1, 0, 2)])
def test_images(order: tuple[int, ...]) -> None:
    mod = lowered(lambda x: op.permute_dims(x, order), (N, 5, M, M))
    noted: list = []
    run = compiled(schedule_leftovers(Machine("znver4", isa_named("avx2")), noted)(mod))
    assert [each.kernel for each in noted] == ["generic_transpose"]
    for n, m in ((1, 1), (2, 19)):
        x = np.random.default_rng(0).standard_normal((n, 5, m, m)).astype(np.float32)
        np.testing.assert_array_equal(run(tvm.runtime.tensor(x)).numpy(), x.transpose(order))


@pytest.mark.parametrize(
    ("body", "shape", "reason"),
    [
        (op.permute_dims, (4, 16), "all sizes are static"),
        (op.tanh, (N, M), "reads along the axis that it stores along"),
        (lambda x: op.sum(x, 0), (N, M), "more than one pass"),
    ],
)
def test_what_is_left(
    body: Callable[..., relax.Expr], shape: tuple[tirx.Expr | int, ...], reason: str
) -> None:
    with pytest.raises(NotHandledError, match=reason):
        dynamic_transposes(function_of(body, shape), Machine("znver4", isa_named("avx2")))
