"""Holds estimates of products against measurements: `python -m tools.machine_fit`.

The public measurements are `microkernels/machines/measurements/xnnpack_dot.json`: one core,
operands in L1, at a clock that nobody states. So the clock is fitted: the one at which the
estimated cycles take the measured time, by the median over the rows of a CPU and a type. What the
rows are off then is the error of the estimate itself. For tiles the clock is fitted to the cycles
of their products alone, from the difference of two calls: what a call costs besides is not the
product's.

Our own are `tile_products.json` there: whole products on tiles, operands in L2 or beyond. Their
clock lies below the true one by what the prediction leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import ceil
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import microkernels.machines
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.microkernel import microkernel_named
from tir_schedules.core.blocking import estimate_cycles
from tir_schedules.core.product_plan import ProductPlan
from tir_schedules.cost.amx_cost import Blocks
from tir_schedules.cost.amx_prediction import TilePart, predict

_FOLDER = Path(microkernels.machines.__file__).parent / "measurements"
MEASUREMENTS, TILE_PRODUCTS = _FOLDER / "xnnpack_dot.json", _FOLDER / "tile_products.json"
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
    """Of AMX tiles: pairs of calls of one block that differ in K."""
    rows = (row for row in measurements() if row["isa"] in TILES)
    for (name, types, _), group in groupby(rows, key=_group):
        core = Machine(name, isa_named("amx")).tile_core
        clocks = []
        for less, more in pairwise(sorted(group, key=lambda row: (row["m"], row["n"], row["k"]))):
            if (less["m"], less["n"]) == (more["m"], more["n"]):
                products = _tile_products(more) - _tile_products(less)
                clocks.append(1e3 * core.tdp * products / (more["ns"] - less["ns"]))
        if clocks:
            middle = median(clocks)
            error = max(abs(clock / middle - 1) for clock in clocks)
            yield Fit(name, f"{types} tiles", len(clocks), middle, core.clock, error)


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


def main() -> None:
    """Prints every fit."""
    print(f"{'machine':<18}{'types':<21}{'rows':>5}{'fitted MHz':>12}{'stated':>8}{'error':>8}")
    for fit in (*vector_fits(), *tile_fits(), *product_fits()):
        numbers = f"{fit.rows:>5}{fit.clock:>12.0f}{fit.stated:>8.0f}{fit.error:>8.0%}"
        print(f"{fit.machine:<18}{fit.types:<21}{numbers}")


if __name__ == "__main__":
    main()
