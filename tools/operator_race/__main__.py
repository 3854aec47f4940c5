"""Measures every ONNX operator beside ONNX Runtime.

    taskset -c 1 python -m tools.operator_race --json race.json
    python -m tools.operator_race --from race.json --below 0.9

Each operator has models of one node in three sizes. Our programs with static and dynamic sizes, and
ONNX Runtime with static sizes, run in turns on one thread; the result is the least time of a call.
Calls below 5 us in ONNX Runtime mostly measure the entry into a session, and are marked.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tvm_hybrid
from tools.dynamic_shapes import timed
from tvm_hybrid.bench.peers.onnx_runtime import optimised_session
from tvm_hybrid.errors import TvmHybridError

from .case import SIZES, Case, Cases
from .elementwise import ELEMENTWISE, REDUCTIONS
from .images import IMAGES
from .moving import MOVING
from .products import PRODUCTS

CASES: Cases = {**ELEMENTWISE, **REDUCTIONS, **MOVING, **IMAGES, **PRODUCTS}
TURNS = 9
SECONDS = 0.006  # of the runs in one turn
TOO_SHORT = 5e-6
FORMS = ("static", "dynamic")


@click.command()
@click.option(
    "--cases", "names", default="", help="Parts of cases' names, with commas; default: all."
)
@click.option(
    "--sizes", default=",".join(SIZES), show_default=True, help="Sizes of inputs, with commas."
)
@click.option("--below", default=0.0, help="Show only ratios below this one.")
@click.option("--json", "json_path", metavar="PATH", help="Write the results to this file.")
@click.option(
    "--from", "from_path", metavar="PATH", help="Show the results in this file; measure nothing."
)
def main(
    names: str, sizes: str, below: float, json_path: str | None, from_path: str | None
) -> None:
    """Compares the speed of ONNX operators with ONNX Runtime.

    Prints ONNX Runtime's time over ours, for static ("static") and dynamic ("dynamic") sizes.
    """
    if from_path:
        results = json.loads(Path(from_path).read_text())
    else:
        parts = names.split(",")
        chosen = [name for name in CASES if any(part in name for part in parts)]
        results = {}
        for name in track(chosen, console=Console(stderr=True)):
            for size in sizes.split(","):
                results[f"{name}; {size}"] = race(CASES[name](SIZES.index(size)))
                if json_path:
                    Path(json_path).write_text(json.dumps(results, indent=1))
    show(results, below)


def race(case: Case) -> dict[str, Any]:
    """Least seconds of a call of ONNX Runtime and of our forms, or the error of a form."""
    found: dict[str, Any] = {}
    runs = {}
    try:
        theirs = optimised_session(case.model(False))
        wanted = theirs.run(None, case.feeds)
        runs["onnxruntime"] = timed(theirs.run, case.feeds)
    except Exception as error:  # ONNX Runtime lacks the operator
        found["onnxruntime"] = str(error).splitlines()[0]
        wanted = None
    for form in FORMS:
        try:
            session = tvm_hybrid.InferenceSession(case.model(form == "dynamic"), num_threads=1)
            made = session.run(None, case.feeds)
        except (TvmHybridError, ValueError, RuntimeError) as error:
            found[form] = str(error).splitlines()[0]
            continue
        if wanted is not None:
            found[f"difference, {form}"] = max(map(_difference, made, wanted), default=0.0)
        runs[form] = timed(session.run, case.feeds)
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run_for in runs.items():
            run_for(0)  # the first call of a turn is slower
            least[name] = min(least[name], *run_for(SECONDS))
    return found | least


def _difference(one: Any, other: Any) -> float:
    """The largest difference of two results, over the largest magnitude of the second."""
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape:
        return float("inf")
    if not a.size or a.dtype.kind not in "fiub":
        return 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.nanmax(np.abs(a - b)) / max(1e-30, np.nanmax(np.abs(b))))


def show(results: dict[str, dict[str, Any]], below: float) -> None:
    """Prints a table, slowest first, and the geometric mean."""
    table = Table("case", "ONNX Runtime us", *FORMS, "note")
    ratios: list[float] = []
    lines: list[tuple[float, list[str]]] = []
    for name, found in results.items():
        theirs = found["onnxruntime"]
        cells, notes, worst = [], [], float("inf")
        for form in FORMS:
            ours = found[form]
            if isinstance(ours, str) or isinstance(theirs, str):
                cells.append("-")
                notes.append(ours if isinstance(ours, str) else f"ONNX Runtime: {theirs}")
                continue
            ratio = theirs / ours
            ratios.append(ratio)
            worst = min(worst, ratio)
            cells.append(f"{ratio:.2f}")
            if found[f"difference, {form}"] > 1e-3:
                notes.append(f"{form} differs by {found[f'difference, {form}']:.2g}")
        short = not isinstance(theirs, str) and theirs < TOO_SHORT
        if short:
            notes.append("short")
        if worst < below or (not below) or worst == float("inf"):
            us = theirs if isinstance(theirs, str) else f"{1e6 * theirs:.1f}"
            lines.append(
                (worst + 100 * short, [name, us[:9], *cells, "; ".join(dict.fromkeys(notes))])
            )
    for _, line in sorted(lines, key=lambda each: each[0]):
        table.add_row(*line)
    Console().print(table)
    if ratios:
        click.echo(
            f"geometric mean of {len(ratios)} ratios: {statistics.geometric_mean(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
