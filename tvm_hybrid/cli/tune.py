"""`tvm-hybrid tune MODEL`: measures configurations of every region into a record file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from microkernels.output_file import require_writable

from ..report.console import output_console, print_json, working
from .options import (
    NamedShape,
    NamedSize,
    fast_math_option,
    fusion_option,
    json_option,
    model_argument,
    precision_option,
)
from .tune_progress import shown

if TYPE_CHECKING:
    from ..tuning.records.record import Record
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
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to append measurements to.",
)
@click.option(
    "--trials",
    default=1000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Configurations of the whole model, those in the file included.",
)
@click.option(
    "--trials-per-region",
    type=click.IntRange(min=1),
    help="Configurations of each region at most, those in the file included.",
)
@click.option(
    "--time-limit",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
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
    type=click.IntRange(min=1),
    help="Configurations that a region gets at a time.",
)
@click.option("--seed", default=0, show_default=True, help="Of the search.")
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that one configuration may take.",
)
@click.option(
    "--resume/--again", default=True, help="Leave out, or measure again, what the file holds."
)
@click.option(
    "--replay",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Simulate the search from these records; nothing is measured or written.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw progress, predictions and a roofline into this file, such as out.png.",
)
@click.option(
    "--tracker",
    metavar="HOST:PORT",
    help="Measure at the servers of this TVM RPC tracker instead of here.",
)
@click.option("--key", default="", help="The key that these servers were started with.")
@click.option(
    "--rpc-timeout",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="Time that one configuration may occupy a server, besides its samples.",
)
@click.option(
    "--layouts",
    default="fixed",
    show_default=True,
    type=click.Choice(["fixed", "joint"]),
    help="joint: search layouts together with loops first. fixed: those known to the file.",
)
@click.option("--shape", "named_shapes", type=NamedShape(), multiple=True, help="Input shape.")
@click.option("--dim", "sizes", type=NamedSize(), multiple=True, help="Size of a symbolic one.")
@click.option("--target", help="CPU to compile for; whoever measures must run its code.")
@click.option("--threads", "num_threads", type=click.IntRange(min=1), help="Threads of one run.")
@precision_option
@fusion_option
@fast_math_option
@json_option
def command(
    model: Path,
    records: Path,
    trials: int,
    trials_per_region: int | None,
    time_limit: float | None,
    min_gain: float,
    strategy: str,
    batch: int,
    seed: int,
    timeout: float,
    resume: bool,
    replay: Path | None,
    plot: Path | None,
    tracker: str | None,
    key: str,
    rpc_timeout: float,
    layouts: str,
    named_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    sizes: tuple[tuple[str, int], ...],
    target: str | None,
    num_threads: int | None,
    precision: str,
    fusion: str,
    fast_math: str,
    as_json: bool,
) -> int:
    """Measures configurations of the regions of MODEL into a record file.

    Where it shortens the model's time most, first. Apply the records with --records of the other
    commands: only what was confirmed to be faster than the default is used. Ctrl-C keeps everything
    that was measured; the same command continues.
    """
    from ..tuning.tune_model import tune

    if plot is not None:
        _check_plot(plot)
    with shown() as callback:
        result = tune(
            model,
            target=target,
            shapes={**dict(named_shapes), **dict(sizes)} or None,
            precision=precision,
            fusion=fusion,
            fast_math=fast_math,
            trials=trials,
            trials_per_region=trials_per_region,
            time_limit=time_limit,
            min_gain=min_gain,
            records=records,
            num_threads=num_threads,
            strategy=strategy,
            batch=batch,
            seed=seed,
            timeout=timeout,
            resume=resume,
            replay=replay,
            tracker=tracker,
            key=key,
            rpc_timeout=rpc_timeout,
            layouts=layouts,
            callbacks=[callback],
        )
    if plot is not None:
        _plot(result.records, plot)
    if as_json:
        print_json(_as_json(result))
    else:
        _print(result, replay or records)
    return INTERRUPTED if result.interrupted else 0


def _plot(records: Sequence[Record], path: Path) -> None:
    from ..report.tune_plot import plot_tuning, roof_of

    if not records:
        logger.warning("nothing was measured, so there is no plot %s", path)
        return
    with working("measuring what the machine can do at most"):
        roof = roof_of(records)
    plot_tuning(records, path, roof)


def _check_plot(path: Path) -> None:
    """Finds out before an hour of measurements, not after it."""
    from ..report.plotting import new_figure

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
    console = output_console()
    console.print(table)
    if result.best_us:
        console.print(
            f"all regions: {result.default_us:.1f} us by default, {result.best_us:.1f} us tuned, "
            f"{result.default_us / result.best_us:.3f}x",
            highlight=False,
        )
    if result.layouts is not None:
        console.print(str(result.layouts), highlight=False, soft_wrap=True, markup=False)
    text = f"ended: {result.reason}; records in {records}"
    console.print(text, highlight=False, soft_wrap=True, markup=False)


def _number(value: float | None) -> str:
    return "failed" if value is None else f"{value:.2f}"


def _as_json(result: TuneResult) -> dict[str, object]:
    regions = [
        {
            "workload": region.region.key,
            "weight": region.weight,
            "size": region.size,
            "default_us": region.default_us,
            "best_us": region.best_us,
            "best": region.best,
            "speedup": region.speedup,
            "measured": region.trials,
            "tried": region.tried,
            "known": region.known,
            "failures": region.failures,
            "stopped": region.stopped,
        }
        for region in result.regions
    ]
    return {
        "regions": regions,
        "default_us": result.default_us,
        "best_us": result.best_us,
        "interrupted": result.interrupted,
        "reason": result.reason,
        "seconds": result.seconds,
        "layouts": None if result.layouts is None else result.layouts.to_dict(),
    }
