"""Fits numbers of descriptions to measurements, and says how far estimates are from them.

    python -m tools.machine_fit            prints both
    python -m tools.machine_fit --write    writes the fitted numbers into the descriptions

The public measurements are `microkernels/machines/measurements/xnnpack_dot.json`: one core,
operands in L1, at a clock that nobody states. So the clock is fitted: the one at which the
estimated cycles take the measured time, by the median over the rows of a CPU and a type. What the
rows are off then is the error of the estimate itself. For tiles the clock is fitted to the cycles
of their products alone, from the longest and the shortest call of a block: what a call costs
besides is not the product's. Fitted are that clock, and how many products of bfloat16 start in a
cycle, which is a multiple of a half.

Our own are `tile_products.json` there: whole products on tiles, operands in L2 or beyond. Their
clock lies below the true one by what the prediction leaves out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from operator import itemgetter
from statistics import mean, median
from typing import Any

import click
import msgspec

from microkernels.isa import isa_named
from microkernels.machines.description import FOLDER, Number, describe
from microkernels.machines.machine import Machine
from microkernels.microkernel import microkernel_named
from tir_schedules.core.blocking import estimate_cycles
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.cost.amx_cost import Blocks
from tir_schedules.cost.amx_prediction import TilePart, predict

MEASUREMENTS = FOLDER / "measurements" / "xnnpack_dot.json"
TILE_PRODUCTS = FOLDER / "measurements" / "tile_products.json"
# Names of instruction sets there and here; elements of K that one instruction multiplies.
ISAS = {
    "fma3": "avx2",
    "avx512": "avx512",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
}
DEPTHS = {"float32": 1, "bfloat16": 2, "uint8,int8": 4}
TILES = {"amxint8": 64, "amxbf16": 32}


@dataclass(frozen=True)
class Fit:
    """The rows of one CPU and type.

    Attributes
    ----------
    machine, types : str
        Which.
    rows : int
        How many.
    clock : float
        In MHz, at which the estimate is right by the median.
    stated : float
        The clock of the description, with all cores busy.
    error : float
        The largest relative error of a row at the fitted clock.
    """

    machine: str
    types: str
    rows: int
    clock: float
    stated: float
    error: float


def measurements() -> list[dict[str, Any]]:
    """The rows of the file, those of one CPU and type side by side."""
    rows: list[dict[str, Any]] = json.loads(MEASUREMENTS.read_text())["rows"]
    return sorted(rows, key=_group)


def vector_fits() -> Iterator[Fit]:
    """Of products on vectors."""
    rows = (row for row in measurements() if row["isa"] in ISAS)
    for (name, types, isa), group in groupby(rows, key=_group):
        machine = Machine(name, isa_named(ISAS[isa]))
        clocks = [1e3 * _cycles(row, machine) / row["ns"] for row in group]
        middle = median(clocks)
        error = max(abs(clock / middle - 1) for clock in clocks)
        yield Fit(name, types, len(clocks), middle, machine.cycles_per_us, error)


def tile_fits() -> Iterator[Fit]:
    """Of AMX tiles: of every block the calls with the least and the largest K."""
    rows = (row for row in measurements() if row["isa"] in TILES)
    for (name, types, _), group in groupby(rows, key=_group):
        core = Machine(name, isa_named("amx")).tile_core
        clocks = []
        rows_of_block = sorted(group, key=lambda row: (row["m"], row["n"], row["k"]))
        for _, calls in groupby(rows_of_block, key=lambda row: (row["m"], row["n"])):
            less, *others = calls
            if others:
                products = _tile_products(others[-1]) - _tile_products(less)
                clocks.append(1e3 * core.tdp * products / (others[-1]["ns"] - less["ns"]))
        if clocks:
            middle = median(clocks)
            error = max(abs(clock / middle - 1) for clock in clocks)
            yield Fit(name, f"{types} tiles", len(clocks), middle, core.clock, error)


def fitted_numbers() -> Iterator[tuple[str, str, Number]]:
    """Every number that is made here: the description that states it, its name, and itself."""
    source = "google/XNNPACK, by tools/machine_fit.py"
    clocks = [fit.clock for fit in tile_fits() if fit.machine == "sapphirerapids"]
    middle = median(clocks)
    error = max(fit.error for fit in tile_fits() if fit.machine == "sapphirerapids")
    yield "sapphirerapids", "clock_tiles", Number(_round(middle, 10), "fitted", source, error)
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
    """Of whole products on tiles."""
    file = json.loads(TILE_PRODUCTS.read_text())
    machine = Machine(file["machine"], isa_named("amx"))
    for types, group in groupby(file["rows"], key=itemgetter("types")):
        clocks = []
        for row in group:
            sizes = {name: row[name] for name in ("m", "n", "k", *Blocks.__annotations__)}
            plan = ProductPlan(kernel=microkernel_named(row["kernel"]), **sizes)
            clocks.append(predict(TilePart(plan=plan, fetches=True), machine).cycles / row["us"])
        middle = median(clocks)
        error = max(abs(clock / middle - 1) for clock in clocks)
        name, stated = f"{types} products", machine.tile_core.clock
        yield Fit(machine.name, name, len(clocks), middle, stated, error)


def _group(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["machine"], row["types"], row["isa"]


def _cycles(row: dict[str, Any], machine: Machine) -> float:
    lanes, steps = machine.isa.f32_lanes, ceil(row["k"] / DEPTHS[row["types"]])
    rows, columns, _ = row["tile"]
    rate = machine.bf16_rate if row["types"] == "bfloat16" else machine.fma_rate
    part = (row["m"], ceil(row["n"] / lanes), steps, rows, max(1, columns // lanes), steps)
    return estimate_cycles(*part, machine, rate)


def _tile_products(row: dict[str, Any]) -> int:
    return ceil(row["m"] / 16) * ceil(row["n"] / 16) * ceil(row["k"] / TILES[row["isa"]])


@click.command()
@click.option("--write", is_flag=True, help="Write the fitted numbers into the descriptions.")
def main(write: bool) -> None:
    """Prints every fit, and the numbers that are made of them."""
    print(f"{'machine':<18}{'types':<21}{'rows':>5}{'fitted MHz':>12}{'stated':>8}{'error':>8}")
    for fit in (*vector_fits(), *tile_fits(), *product_fits()):
        numbers = f"{fit.rows:>5}{fit.clock:>12.0f}{fit.stated:>8.0f}{fit.error:>8.0%}"
        print(f"{fit.machine:<18}{fit.types:<21}{numbers}")

    for name, number, fitted in fitted_numbers():
        print(f"{name} {number}: {fitted.value:g}, {fitted.error:.0%} off at most")
    if write:
        write_numbers()


if __name__ == "__main__":
    main()
