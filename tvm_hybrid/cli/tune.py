"""`tvm-hybrid tune MODEL`: measures configurations of every region into a record file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from microkernels.base.files import require_writable

from .base.console import output_console, print_json, say, working
from .base.options import (
    AT_LEAST_ONE,
    FILE,
    OF_CODE,
    SECONDS,
    compile_options,
    json_option,
    model_argument,
)
from .tune_progress import shown

if TYPE_CHECKING:
    from ..records.record import Record
    from ..tuning.tune_result import TuneResult

logger = logging.getLogger("tvm_hybrid")

INTERRUPTED = 130


@click.command("tune")
@model_argument
@click.option(
    "--records",
    default="records.jsonl",
    show_default=True,
    metavar="FILE",
    type=FILE,
    help="File to append measurements to.",
)
@click.option(
    "--trials",
    default=1000,
    show_default=True,
    type=AT_LEAST_ONE,
    help="Configurations of the whole model, those in the file included.",
)
@click.option(
    "--trials-per-region",
    type=AT_LEAST_ONE,
    help="Configurations of each region at most, those in the file included.",
)
@click.option(
    "--time-limit",
    metavar="SECONDS",
    type=SECONDS,
    help="Seconds that the search may take.",
)
@click.option(
    "--min-gain",
    default=0.005,
    show_default=True,
    type=click.FloatRange(min=0),
    help="End when the model is expected to gain less than this share of its time.",
)
@click.option(
    "--strategy",
    default="model",
    show_default=True,
    help="What is tried next: model (learns), evolutionary, random or grid.",
)
@click.option(
    "--batch",
    default=8,
    show_default=True,
    type=AT_LEAST_ONE,
    help="Configurations that a region gets at a time.",
)
@click.option("--seed", default=0, show_default=True, help="Of the search.")
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    type=SECONDS,
    help="Seconds that one configuration may take.",
)
@click.option(
    "--resume/--again", default=True, help="Leave out, or measure again, what the file holds."
)
@click.option(
    "--replay",
    metavar="FILE",
    type=FILE,
    help="Simulate the search from these records; nothing is measured or written.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=FILE,
    help="Draw progress, predictions and a roofline into this file, such as out.png.",
)
@click.option(
    "--tracker",
    metavar="HOST:PORT",
    help="Measure at the servers of this TVM RPC tracker, and for their CPU, instead of here.",
)
@click.option("--key", default="", help="The key that these servers were started with.")
@click.option(
    "--rpc-timeout",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    type=SECONDS,
    help="Time that one configuration may occupy a server, besides its samples.",
)
@click.option(
    "--layouts",
    default="fixed",
    show_default=True,
    type=click.Choice(["fixed", "joint"]),
    help="joint: search layouts together with loops first. fixed: those known to the file.",
)
@compile_options(*OF_CODE, "threads", "strict", "dump_ir")
@json_option
def command(model: Path, plot: Path | None, as_json: bool, **settings: Any) -> int:
    """Measures configurations of the regions of MODEL into a record file.

    Where it shortens the model's time most, first. Apply the records with --records of the other
    commands: only what was confirmed to be faster than the default is used. Ctrl-C keeps everything
    that was measured; the same command continues.
    """
    from ..tuning.tune_model import tune

    if plot is not None:
        _check_plot(plot)
    with shown() as callback:
        result = tune(model, callbacks=[callback], **settings)
    if plot is not None:
        _plot(result.records, plot)
    if as_json:
        print_json(_as_json(result))
    else:
        _print(result, settings["replay"] or settings["records"])
    return INTERRUPTED if result.interrupted else 0


def _plot(records: Sequence[Record], path: Path) -> None:
    from ..tuning.study.tune_plot import plot_tuning, roof_of

    if not records:
        logger.warning("nothing was measured, so there is no plot %s", path)
        return
    with working("measuring what the machine can do at most"):
        roof = roof_of(records)
    plot_tuning(records, path, roof)


def _check_plot(path: Path) -> None:
    """Finds out before an hour of measurements, not after it."""
    from ..tuning.study.tune_plot import new_figure

    formats = new_figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise click.BadParameter(
            f"{path} does not end in one of {', '.join(sorted(formats))}", param_hint="--plot"
        )
    require_writable(path)


def _print(result: TuneResult, records: Path) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("speed-up", "runs", "default us", "best us", "tried", "failed", "region", "best")
    for region in result.regions:
        config = " ".join(f"{name}={value}" for name, value in (region.best or {}).items())
        table.add_row(
            f"{region.speedup:.3f}",
            f"{region.weight} x",
            _number(region.default_us),
            _number(region.best_us),
            f"{region.tried:,} of {region.size:,}",
            str(region.failures),
            escape(region.region.key),
            escape(config),
        )
    output_console().print(table)
    if result.best_us:
        say(
            f"all regions: {result.default_us:.1f} us by default, {result.best_us:.1f} us tuned, "
            f"{result.default_us / result.best_us:.3f}x"
        )
    for arrangement in result.arrangements:
        say(arrangement)
    if result.layouts is not None:
        say(result.layouts)
    say(f"ended: {result.reason}; records in {records}")


def _number(value: float | None) -> str:
    return "failed" if value is None else f"{value:.2f}"


def _as_json(result: TuneResult) -> dict[str, object]:
    regions = []
    for region in result.regions:
        fields = dict(vars(region))
        workload, measured = fields.pop("region").key, fields.pop("trials")
        regions.append({"workload": workload, "measured": measured, **fields})
    return {
        "regions": regions,
        "default_us": result.default_us,
        "best_us": result.best_us,
        "interrupted": result.interrupted,
        "reason": result.reason,
        "seconds": result.seconds,
        "layouts": None if result.layouts is None else result.layouts.to_dict(),
        "arrangements": [vars(arrangement) for arrangement in result.arrangements],
    }
