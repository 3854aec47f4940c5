"""The pass that configures tiles: every program is written once, with what the pass adds to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.amx.configure_tiles import ConfigureTiles, configure_tiles
from tests.microkernels.tile_programs import TileProgram, written

WHOLE = ("2x2", 32, 32)
LOW = ("2x2", 16, 32)
WIDE = ("1x4", 16, 64)
TAIL = ("2x2", 32, 13)


def a_parallel_loop(program: TileProgram) -> None:
    s = program.accumulators(32, 32)
    program.check()
    with I.parallel(4):
        program.configure(*WHOLE)
        with I.serial(3), I.serial(8):
            program.tiles(s, WHOLE)
        program.release()


def no_parallel_loop(program: TileProgram) -> None:
    s = program.accumulators(32, 32)
    program.check()
    program.configure(*WHOLE)
    with I.serial(3):
        program.tiles(s, WHOLE)
    program.release()


def a_tail_in_the_task(program: TileProgram) -> None:
    s, tail = program.accumulators(32, 32), program.accumulators(32, 13)
    program.check()
    with I.parallel(4):
        program.configure(*WHOLE)
        program.tiles(s, WHOLE)
        with I.serial(3):
            program.tiles(s, WHOLE)
        program.configure(*TAIL)
        program.tiles(tail, TAIL)
        I.evaluate(1)
        program.tiles(tail, TAIL)
        program.release()


def sizes_that_share_a_configuration(program: TileProgram) -> None:
    """A block that leaves tiles unused; and whole tiles, which are alike in both layouts."""
    s, low, again, wide = (program.accumulators(*size[1:]) for size in (WHOLE, LOW, LOW, WIDE))
    program.check()
    with I.parallel(4):
        program.configure(*WHOLE)
        program.tiles(s, WHOLE)
        I.evaluate(1)
        program.tiles(low, LOW)
        program.release()
    with I.parallel(2):
        program.configure(*WIDE)
        program.tiles(again, LOW)
        program.tiles(wide, WIDE)
        program.release()


def two_sizes_in_a_loop(program: TileProgram) -> None:
    """The second turn of the loop needs the first configuration again."""
    s, tail = program.accumulators(32, 32), program.accumulators(32, 13)
    program.check()
    with I.parallel(4):
        with I.serial(3):
            program.configure(*WHOLE)
            program.tiles(s, WHOLE)
            program.configure(*TAIL)
            program.tiles(tail, TAIL)
        program.release()


def two_sizes_under_a_condition(program: TileProgram) -> None:
    s, tail = program.accumulators(32, 32), program.accumulators(32, 13)
    program.check()
    with I.parallel(4) as task:
        with I.If(task < 3):
            with I.Then():
                program.configure(*WHOLE)
                program.tiles(s, WHOLE)
            with I.Else():
                program.configure(*TAIL)
                program.tiles(tail, TAIL)
        program.release()


def tiles_beside_a_parallel_loop(program: TileProgram) -> None:
    """The thread that runs the function takes part in the loop: it holds no tiles meanwhile."""
    s, tail = program.accumulators(32, 32), program.accumulators(32, 13)
    program.check()
    with I.parallel(2):
        I.evaluate(1)
    with I.serial(2):
        program.configure(*WHOLE)
        program.tiles(s, WHOLE)
        program.release()
        with I.parallel(4):
            program.configure(*TAIL)
            program.tiles(tail, TAIL)
            program.release()


PROGRAMS = [
    a_parallel_loop,
    no_parallel_loop,
    a_tail_in_the_task,
    sizes_that_share_a_configuration,
    two_sizes_in_a_loop,
    two_sizes_under_a_condition,
    tiles_beside_a_parallel_loop,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_configurations_are_loaded_where_they_change(
    program: Callable[[TileProgram], None],
) -> None:
    expected = written(program, configured=True)
    after = configure_tiles(written(program))
    tvm.ir.assert_structural_equal(after, expected)
    assert configure_tiles(after) is after


def test_the_pass_leaves_functions_without_tiles_alone() -> None:
    def nothing(_: TileProgram) -> None:
        with I.parallel(4):
            I.evaluate(1)

    module = tvm.IRModule({"plain": written(nothing), "tiled": written(a_parallel_loop)})
    after = ConfigureTiles()(module)
    assert after["plain"].same_as(module["plain"])
    tvm.ir.assert_structural_equal(after["tiled"], written(a_parallel_loop, configured=True))


def test_a_body_that_is_no_block() -> None:
    """Functions that are not for schedules have no root block."""

    def without_root(function: tirx.PrimFunc) -> tirx.PrimFunc:
        root = function.body.block
        return function.with_body(root.body)

    before, after = (written(outside_buffer, configured) for configured in (False, True))
    tvm.ir.assert_structural_equal(configure_tiles(without_root(before)), without_root(after))


def outside_buffer(program: TileProgram) -> None:
    program.check()
    with I.parallel(4):
        program.configure(*WHOLE)
        with I.sblock("own"):
            I.reads()
            I.writes()
            program.tiles(program.accumulators(32, 32), WHOLE)
        program.release()
