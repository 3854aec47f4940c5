"""`tvm-hybrid layouts MODEL`: layouts and loops tuned together, compared with loops alone."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .base.console import print_json, say
from .base.options import (
    AT_LEAST_ONE,
    FOLDER,
    OF_CODE,
    SECONDS,
    compile_options,
    json_option,
    model_argument,
)
from .tune_progress import shown

if TYPE_CHECKING:
    from ..options import CompileOptions


@click.command("layouts")
@model_argument
@click.option(
    "--folder",
    default=".",
    show_default=True,
    type=FOLDER,
    help="Where both record files go: loops.jsonl and joint.jsonl, which must not exist.",
)
@click.option(
    "--trials",
    default=400,
    show_default=True,
    type=AT_LEAST_ONE,
    help="Configurations that each of both runs measures.",
)
@click.option(
    "--time-limit",
    metavar="SECONDS",
    type=SECONDS,
    help="Seconds that each of both may take.",
)
@click.option("--strategy", default="model", show_default=True, help="As for tune.")
@click.option("--seed", default=0, show_default=True, help="Of both searches.")
@compile_options(*OF_CODE, "num_threads")
@json_option
def command(
    model: Path, folder: Path, options: CompileOptions, as_json: bool, **settings: Any
) -> None:
    """Tunes MODEL twice with as many trials, with its layouts and without, and compares both."""
    from ..bench.compare_layouts import compare_layouts

    with shown() as callback:
        found = compare_layouts(
            model, folder, options, min_gain=0.0, callbacks=[callback], **settings
        )
    if not as_json:
        say(found)
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
