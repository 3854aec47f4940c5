"""Fits numbers of CPU descriptions to measurements, and prints the errors of the estimates.

    python -m tools.machine_fit            prints both
    python -m tools.machine_fit --write    writes the fitted numbers into the descriptions

The public measurements are `microkernels/machines/measurements/xnnpack_dot.json`: one core,
operands in L1, at an unknown clock. So the clock is fitted: at it, the estimated cycles take the
measured time, by the median over the rows of a CPU and a type. The deviation of the rows at that
clock is the error of the estimate itself. For AMX tiles three numbers are fitted: the time of a
call, the time of a block besides its instructions, and the clock; each half of the rows is
predicted from the other. The number of bfloat16 products that vectors start in a cycle is fitted,
too, as a multiple of a half.

Our own measurements are `tile_products.json` there: whole products on tiles, operands in L2 or
beyond. The clock at which their prediction is right by the median is below the true one, because
the prediction leaves out some costs.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil
from statistics import mean, median
from typing import Any

import click
import msgspec
import numpy as np

from microkernels.amx.instructions import TileBlock
from microkernels.amx.scoreboard import Core, block_cycles
from microkernels.isa import isa_named
from microkernels.machines.description import FOLDER, Number, describe
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tir_schedules.core.blocking import estimate_cycles
from tir_schedules.core.product_plan import PANELS_AHEAD, ProductPlan
from tir_schedules.cost.amx_cost import TilePart, predict

MEASUREMENTS = FOLDER / "measurements" / "xnnpack_dot.json"
TILE_PRODUCTS = FOLDER / "measurements" / "tile_products.json"
SIZES = ("m", "n", "k", "rows", "vectors", "m_block", "k_block")  # fields of a tile product
# XNNPACK's names of instruction sets -> ours; elements of K that one instruction multiplies.
ISAS = {
    "fma3": "avx2",
    "avx512": "avx512",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
}
DEPTHS = {"float32": 1, "bfloat16": 2, "uint8,int8": 4}
TILES = ("amxint8", "amxbf16", "amxfp16")
LAYOUT_OF = {(32, 32): "2x2", (16, 64): "1x4"}


@dataclass(frozen=True)
class Fit:
    """The fit of the rows of one CPU and type."""

    machine: str
    types: str
    rows: int  # number of rows
    clock: float  # MHz, at which the estimate is right by the median
    stated: float  # MHz in the description, with all cores busy
    error: float  # largest relative error of a row at the fitted clock


def measurements() -> list[dict[str, Any]]:
    """The rows of XNNPACK's file, sorted by CPU and type."""
    rows: list[dict[str, Any]] = json.loads(MEASUREMENTS.read_text())["rows"]
    return sorted(rows, key=_group)


def vector_fits() -> Iterator[Fit]:
    """The fits for products on vectors."""
    rows = (row for row in measurements() if row["isa"] in ISAS)
    for (name, types, isa), group in groupby(rows, key=_group):
        machine = Machine(name, isa_named(ISAS[isa]))
        clocks = [1e3 * _cycles(row, machine) / row["ns"] for row in group]
        middle = median(clocks)
        error = max(abs(clock / middle - 1) for clock in clocks)
        yield Fit(name, types, len(clocks), middle, machine.cycles_per_us, error)


@dataclass(frozen=True)
class TileFit:
    """Calls of tile kernels on one CPU: time = call + blocks * block + cycles / clock."""

    machine: str
    rows: int  # number of rows
    call_ns: float  # time of a call besides the tile instructions
    block_ns: float  # time of a block besides the tile instructions
    clock: float  # MHz
    error: float  # largest relative error of a half of the rows, predicted from the other half


def tile_fits() -> Iterator[TileFit]:
    """The fits for calls of AMX kernels whose blocks have one of our layouts."""
    for name in ("sapphirerapids", "graniterapids"):
        core = Machine(name, isa_named("amx")).tile_core
        found = [row for row in measurements() if row["machine"] == name and row["isa"] in TILES]
        calls = [row for row in found if tuple(row["tile"][:2]) in LAYOUT_OF]
        terms = np.array([_terms(row, core) for row in calls])
        times = np.array([row["ns"] for row in calls])
        every, error = np.arange(len(calls)), 0.0
        for half in (0, 1):
            fitting, held = every % 2 == half, every % 2 != half
            predicted = terms[held] @ _least_squares(terms[fitting], times[fitting])
            error = max(error, float(np.abs(predicted / times[held] - 1).max()))
        call, block, cycle = _least_squares(terms, times)
        yield TileFit(name, len(calls), call, block, 1e3 / cycle, error)


def _terms(row: dict[str, Any], core: Core) -> tuple[float, float, float]:
    """One (for the call), its blocks, and the cycles of their instructions."""
    rows, columns, depth = row["tile"]
    layout = LAYOUT_OF[rows, columns]
    block = TileBlock(layout, rows // 16, columns // 16, row["k"] // depth)
    blocks = row["n"] // columns
    return 1.0, blocks, blocks * block_cycles(block, core)


def _least_squares(terms: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The coefficients with the least squares of relative errors."""
    scaled = terms / times[:, None]
    return np.linalg.lstsq(scaled, np.ones(len(times)), rcond=None)[0]


def fitted_numbers() -> Iterator[tuple[str, str, Number]]:
    """Every fitted number: the description that states it, its name, and the number."""
    source = "fitted by tools/machine_fit.py to measurements/xnnpack_dot.json (google/XNNPACK)"
    for fit in tile_fits():
        clock = describe(fit.machine).at("clock_tiles")
        if fit.machine == "sapphirerapids":
            clock = _round(fit.clock, 10)
            yield fit.machine, "clock_tiles", Number(clock, "fitted", source, fit.error)
        block = _round(fit.block_ns * clock / 1e3, 1)
        yield fit.machine, "tile_block", Number(block, "fitted", source, fit.error)
    found = {(fit.machine, fit.types): fit.clock for fit in vector_fits()}
    for name, likewise in (("sapphirerapids", ["graniterapids"]), ("znver4", [])):
        stated = describe(name).at("bf16_rate_512")
        rates = [
            stated * found[each, "bfloat16"] / found[each, "float32"] for each in (name, *likewise)
        ]
        rate = _round(mean(rates), 0.5)
        error = max(abs(each / rate - 1) for each in rates)
        yield name, "bf16_rate_512", Number(rate, "fitted", source, error)


def _round(value: float, unit: float) -> float:
    return round(value / unit) * unit


def write_numbers() -> None:
    """Writes the fitted numbers into the descriptions that state them."""
    for name, number, fitted in fitted_numbers():
        path = FOLDER / f"{name}.json"
        rounded = msgspec.structs.replace(fitted, error=round(fitted.error or 0.0, 3))
        line = f'    "{number}": {json.dumps(msgspec.to_builtins(rounded))}'
        text = path.read_text()
        path.write_text(re.sub(rf'    "{number}": {{.*}}', line, text))


def product_fits() -> Iterator[Fit]:
    """The fit for whole products on tiles; each half's error is at the clock of the other half."""
    file = json.loads(TILE_PRODUCTS.read_text())
    machine = Machine(file["machine"], isa_named("amx"))
    clocks = [_clock_of_product(row, machine) for row in file["rows"]]
    error = 0.0
    for half in (0, 1):
        middle = median(clocks[half::2])
        error = max(error, *(abs(clock / middle - 1) for clock in clocks[1 - half :: 2]))
    stated = machine.tile_core.clock
    yield Fit(machine.name, "products on tiles", len(clocks), median(clocks), stated, error)


def _clock_of_product(row: dict[str, Any], machine: Machine) -> float:
    """The clock, in MHz, at which the prediction of a product is its measured time."""
    sizes = {name: row[name] for name in SIZES}
    plan = ProductPlan(kernel=microkernel_named(row["kernel"]), **sizes)
    part = TilePart(plan=plan, fetches=True)
    return predict(part, _fetching_twice(plan, machine)).cycles / float(row["us"])


def _fetching_twice(plan: ProductPlan, machine: Machine) -> Machine:
    """The machine with slower L3 and memory, as the measured code had to use them."""
    # The code's tiles prefetched whole lines for each step, so that three and four blocks of rows
    # prefetched the next panel more than once.
    blocks = ceil(plan.m / plan.rows)
    times = blocks * ceil(plan.vectors / blocks) / plan.vectors
    found, core = copy.copy(machine), machine.tile_core
    near, l3, memory = core.rates
    if blocks <= PANELS_AHEAD * plan.vectors:
        found.__dict__["tile_core"] = replace(core, rates=(near, l3 / times, memory / times))
    return found


def _group(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["machine"], row["types"], row["isa"]


def _cycles(row: dict[str, Any], machine: Machine) -> float:
    lanes, steps = machine.isa.f32_lanes, ceil(row["k"] / DEPTHS[row["types"]])
    rows, columns, _ = row["tile"]
    rate = machine.bf16_rate if row["types"] == "bfloat16" else machine.fma_rate
    part = (row["m"], ceil(row["n"] / lanes), steps, rows, max(1, columns // lanes), steps)
    return estimate_cycles(*part, machine, rate)


@click.command()
@click.option("--write", is_flag=True, help="Write the fitted numbers into the descriptions.")
def main(write: bool) -> None:
    """Prints every fit, and the numbers computed from them."""
    print(f"{'machine':<18}{'types':<21}{'rows':>5}{'fitted MHz':>12}{'stated':>8}{'error':>8}")
    for fit in (*vector_fits(), *product_fits()):
        numbers = f"{fit.rows:>5}{fit.clock:>12.0f}{fit.stated:>8.0f}{fit.error:>8.0%}"
        print(f"{fit.machine:<18}{fit.types:<21}{numbers}")
    for calls in tile_fits():
        numbers = f"call {calls.call_ns:.0f} ns, block {calls.block_ns:.0f} ns"
        numbers += f", {calls.clock:.0f} MHz, {calls.error:.0%} off at most where held out"
        print(f"{calls.machine}, {calls.rows} calls on tiles: {numbers}")

    for name, number, fitted in fitted_numbers():
        print(f"{name} {number}: {fitted.value:g}, {fitted.error:.0%} off at most")
    if write:
        write_numbers()


if __name__ == "__main__":
    main()
