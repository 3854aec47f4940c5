"""Rounds: several steps of K between two branches of a tile's loop.

    for round:  A0 B0 A0*B0   A1 B1 A1*B1   A2 B2 A2*B2   A3 B3 A3*B3      then what is left of K

A core with vectors of 256 bits starts FMAs on the ports that it counts and branches on, too. A step
of 6x16 keeps both of them busy for 6 cycles, so that whatever else goes there costs time: with a
branch, three sums and a prefetch in each step a perceptron of 128 rows by weights of 8.8 MB takes
3.3 ms, in rounds of four 3.05 ms; the FMAs alone take 2.9 ms (Emerald Rapids, two threads). With
vectors of 512 bits one of the two ports, and so the time between, is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.tile import LoadA, LoadB, Start, Tile
from microkernels.vector.expressions import Expr
from tir_schedules.core.blocking import Group
from tir_schedules.core.product_plan import ProductPlan

# (row of a tile, loop variables) -> None; fetches before a step of K.
Ahead = Callable[[Expr | int, Sequence[Expr | int]], None]

ROUND = 4


def steps_of_round(plan: ProductPlan, steps: int) -> int:
    """How many steps of K a round has, of so many; 1 where rounds are not worth their code.

    They are where f32 vectors of 256 bits multiply a large weight.
    """
    kernel = plan.kernel
    shared = kernel.isa_name == "avx2" and kernel.b_dtype == "float32"
    return ROUND if shared and plan.fetches_evenly and steps >= 2 * ROUND else 1


def place_in_rounds(ks: Sequence[Expr | int]) -> Expr | int:
    """The step of K of a round and a step's number in it."""
    number, place = ks
    return number * ROUND + place


def emit_rounds(
    kernel: Microkernel,
    rows: int,
    vectors: int,
    steps: int,
    load_a: LoadA,
    load_b: LoadB,
    init: Start | None = None,
) -> Tile:
    """Emits a tile as `Microkernel.emit`, in rounds.

    `load_a` and `load_b` are given two variables: the round, and the step's number in it, which is
    an int.
    """
    tile = kernel.begin(rows, vectors, init)

    def step(number: Expr, place: int) -> None:
        kernel.accumulate(
            tile,
            range(rows),
            (),
            lambda row, _: load_a(row, (number, place)),
            lambda vector, _: load_b(vector, (number, place)),
        )

    with I.serial(steps // ROUND) as number:
        for place in range(ROUND):
            step(number, place)
    for place in range(steps % ROUND):
        step(tirx.const(steps // ROUND, "int32"), place)
    return tile


def fetch_by_rounds(
    plan: ProductPlan,
    vectors: int,
    line_vectors: int,
    most: int,
    first: Expr | int,
    group: Group,
    before: int,
    tiles: int,
    fetch: Callable[[Expr | int], None],
) -> Ahead | None:
    """What fetches a tile's share of the next panel: all tiles together fetch it once.

    Places are elements, not lines, so that they are sums alone: to count lines takes a
    multiplication in each step, on a port of the FMAs.

    Parameters
    ----------
    vectors, line_vectors : int
        Vectors of a panel, and of one of its steps that a line holds.
    most : int
        Lines that a step may fetch.
    first : Expr or int
        Where the block of K begins, in steps.
    group, before, tiles
        Tiles of one size, the tiles before them, and all tiles of the panel.
    fetch
        (element of the next panel) -> None; fetches the line that holds it.

    Returns
    -------
    callable or None
        (row of a tile, (round, step in it)) -> None; None where a tile is too small to fetch.
    """
    width = vectors * plan.kernel.lanes * plan.kernel.kr  # elements of a step of a panel
    of_tile, of_round = math.ceil(plan.steps * width / tiles), math.ceil(ROUND * width / tiles)
    count = min(math.ceil(ROUND * vectors / (line_vectors * tiles)), ROUND * most)
    if not count:
        return None

    def ahead(tile: Expr | int, ks: Sequence[Expr | int]) -> None:
        start = (before + (tile - group.start) // group.size) * of_tile
        start += first * of_round // ROUND + ks[0] * of_round
        for each in range(count):
            if each * ROUND // count == ks[1]:
                fetch(start + each * of_round // count)

    return ahead
