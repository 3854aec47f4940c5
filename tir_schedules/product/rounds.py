"""Rounds: several steps of K between two branches of a tile's loop.

    for round:  A0 B0 A0*B0   A1 B1 A1*B1   A2 B2 A2*B2   A3 B3 A3*B3      then what is left of K

A core with vectors of 256 bits starts FMAs on the ports that it counts and branches on, too. A step
of 6x16 keeps both of them busy for 6 cycles, so that whatever else goes there costs time: with a
branch, three sums and a prefetch in each step a perceptron of 128 rows by weights of 8.8 MB takes
3.3 ms, in rounds of four 3.05 ms; the FMAs alone take 2.9 ms (Emerald Rapids, two threads). With
vectors of 512 bits one of the two ports, and so the time between, is free.
"""

from __future__ import annotations

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import LoadA, LoadB, Microkernel, Start, Tile
from tir_schedules.core.product_plan import ProductPlan

ROUND = 4


def steps_of_round(plan: ProductPlan, steps: int) -> int:
    """How many steps of K a round has, of so many; 1 where rounds are not worth their code.

    They are where f32 vectors of 256 bits multiply a large weight.
    """
    kernel = plan.kernel
    shared = kernel.isa_name == "avx2" and kernel.b_dtype == "float32"
    return ROUND if shared and plan.fetches_evenly and steps >= 2 * ROUND else 1


def emit_rounds(
    kernel: Microkernel,
    rows: int,
    vectors: int,
    steps: int,
    load_a: LoadA,
    load_b: LoadB,
    init: Start | None = None,
    length: int = ROUND,
) -> Tile:
    """Emits a tile as `Microkernel.emit`, in rounds of so many steps.

    `load_a` and `load_b` are given two variables: the round, and the step's number in it, which is
    an int.
    """
    tile = kernel.begin(rows, vectors, init)

    def step(number: tirx.Expr, place: int) -> None:
        kernel.accumulate(
            tile,
            range(rows),
            (),
            lambda row, _: load_a(row, (number, place)),
            lambda vector, _: load_b(vector, (number, place)),
        )

    with I.serial(steps // length) as number:
        for place in range(length):
            step(number, place)
    for place in range(steps % length):
        step(tirx.const(steps // length, "int32"), place)
    return tile
