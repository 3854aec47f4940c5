"""`tvm-hybrid layouts MODEL`: layouts and loops tuned together, compared with loops alone."""

from __future__ import annotations

import statistics
from pathlib import Path

import click

from ..report.console import output_console, print_json
from .options import (
    NamedShape,
    NamedSize,
    json_option,
    model_argument,
    precision_option,
)
from .tune_progress import shown


@click.command("layouts")
@model_argument
@click.option(
    "--folder",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where both record files go: loops.jsonl and joint.jsonl, which must not exist.",
)
@click.option(
    "--trials",
    default=400,
    show_default=True,
    type=click.IntRange(min=1),
    help="Configurations that each of both runs measures.",
)
@click.option(
    "--time-limit",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that each of both may take.",
)
@click.option("--strategy", default="model", show_default=True, help="As for tune.")
@click.option("--seed", default=0, show_default=True, help="Of both searches.")
@click.option("--shape", "named_shapes", type=NamedShape(), multiple=True, help="Input shape.")
@click.option("--dim", "sizes", type=NamedSize(), multiple=True, help="Size of a symbolic one.")
@click.option("--target", help="CPU to compile for; this machine must run its code.")
@click.option("--threads", "num_threads", type=click.IntRange(min=1), help="Threads of one run.")
@precision_option
@json_option
def command(
    model: Path,
    folder: Path,
    trials: int,
    time_limit: float | None,
    strategy: str,
    seed: int,
    named_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    sizes: tuple[tuple[str, int], ...],
    target: str | None,
    num_threads: int | None,
    precision: str,
    as_json: bool,
) -> None:
    """Tunes MODEL twice with as many trials, with its layouts and without, and compares both."""
    from ..report.compare_layouts import compare_layouts

    with shown() as callback:
        found = compare_layouts(
            model,
            folder,
            target=target,
            shapes={**dict(named_shapes), **dict(sizes)} or None,
            precision=precision,
            num_threads=num_threads,
            trials=trials,
            time_limit=time_limit,
            strategy=strategy,
            seed=seed,
            min_gain=0.0,
            callbacks=[callback],
        )
    if not as_json:
        output_console().print(str(found), highlight=False, soft_wrap=True, markup=False)
        return
    print_json(
        {
            "loops_us": statistics.median(found.loops_us),
            "joint_us": statistics.median(found.joint_us),
            "speedup": found.speedup,
            "chance": found.chance,
            "loops_trials": found.loops_trials,
            "joint_trials": found.joint_trials,
            "layouts": None if found.layouts is None else found.layouts.to_dict(),
        }
    )
