"""Schedules whose accumulators would not stay in their tiles are refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm.tirx.script.builder.ir as I
from tvm import s_tir

from microkernels.amx.configure_tiles import configure_tiles
from microkernels.amx.tensor_intrin import SCOPE, register_amx_intrins
from microkernels.errors import CompileError
from microkernels.microkernel import microkernel_named
from tests.microkernels.amx_schedule import products
from tests.microkernels.tile_programs import TileProgram, written

SIZE = ("2x2", 32, 32)


def unfinished(moved: bool, stored: bool) -> s_tir.Schedule:
    """A matmul on tiles whose write-back was perhaps not moved, or not tensorized."""
    kernel = microkernel_named("amx_u8s8s32_32x32")
    schedule = s_tir.Schedule(products(kernel, 64, [96], 128))
    block = schedule.get_sblock("C0")
    i, j, k = schedule.get_loops(block)
    outer_i, inner_i = schedule.split(i, [None, 32])
    outer_j, inner_j = schedule.split(j, [None, 32])
    steps, inner_k = schedule.split(k, [None, 64])
    schedule.reorder(outer_i, outer_j, steps, inner_i, inner_j, inner_k)
    write_back = schedule.cache_write(block, 0, SCOPE)
    if moved:
        schedule.reverse_compute_at(write_back, outer_j)
    init = schedule.decompose_reduction(block, steps)
    names = register_amx_intrins(kernel, 32, 32)
    schedule.tensorize(schedule.get_loops(init)[-2], names.init)
    schedule.tensorize(inner_i, names.multiply)
    if stored:
        if not moved:
            rows, columns = schedule.get_loops(write_back)
            outer_rows, inner_rows = schedule.split(rows, [None, 32])
            outer_columns, inner_columns = schedule.split(columns, [None, 32])
            schedule.reorder(outer_rows, outer_columns, inner_rows, inner_columns)
        schedule.tensorize(schedule.get_loops(write_back)[-2], names.store)
    return schedule


def test_a_finished_schedule_passes() -> None:
    configure_tiles(unfinished(moved=True, stored=True).mod["main"])


def test_a_write_back_that_was_not_moved() -> None:
    message = r"64x96 elements of C0_amx.tmm are alive.* one block of 32x32: .*reverse_compute_at"
    with pytest.raises(CompileError, match=message):
        configure_tiles(unfinished(moved=False, stored=True).mod["main"])


def test_a_write_back_that_was_not_tensorized() -> None:
    message = r"block C0_amx.tmm works on C0_amx.tmm, .*, without tile instructions: tensorize init"
    with pytest.raises(CompileError, match=message):
        configure_tiles(unfinished(moved=True, stored=False).mod["main"])


def scalar_code(program: TileProgram) -> None:
    s = program.accumulators(32, 32)
    program.tiles(s, SIZE)
    with program.touching(s, "relu"):
        I.evaluate(1)


def two_sizes(program: TileProgram) -> None:
    s = program.accumulators(32, 32)
    program.tiles(s, SIZE)
    program.tiles(s, ("2x2", 32, 16))


def too_large(program: TileProgram) -> None:
    program.tiles(program.accumulators(2, 32, 32), SIZE)


def interleaved(program: TileProgram) -> None:
    s, other = program.accumulators(32, 32), program.accumulators(32, 32)
    program.tiles(s, SIZE)
    with I.serial(8):
        program.tiles(other, SIZE)
    program.tiles(s, SIZE)


def across_tasks(program: TileProgram) -> None:
    s = program.accumulators(32, 32)
    program.tiles(s, SIZE)
    with I.parallel(4):
        program.tiles(s, SIZE)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (scalar_code, "block relu works on .* without tile instructions"),
        (two_sizes, "used as blocks of 32x16 in 2x2, 32x32 in 2x2; init, multiply and store"),
        (too_large, "2x32x32 elements of .* are alive at once, but the tiles hold one block"),
        (interleaved, "other accumulators are in use, but there is one set of tiles"),
        (across_tasks, "handed from one task of the parallel loop .* parallelize a loop outside"),
    ],
)
def test_programs_that_need_more_than_the_tiles(
    program: Callable[[TileProgram], None], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        configure_tiles(written(program))
