"""`tvm-hybrid record-spaces`: measures whole spaces of the public regions, for `simulate`."""

from __future__ import annotations

import lzma
from functools import partial
from pathlib import Path

import click

from microkernels.base.files import write_whole

from .base.console import error_console
from .base.options import FOLDER


@click.command("record-spaces")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--folder",
    default=".",
    show_default=True,
    type=FOLDER,
    help="Where NAME.jsonl and, when it is complete, NAME.jsonl.xz are written.",
)
@click.option("--cpu", type=click.IntRange(min=0), help="The CPU to measure on.")
@click.option("--list", "only_list", is_flag=True, help="Name the regions; measure nothing.")
def command(names: tuple[str, ...], folder: Path, cpu: int | None, only_list: bool) -> None:
    """Measures every configuration of public regions on one thread, minutes for each.

    NAME is one of those that --list tells; without any, all. The same command continues after an
    interruption, and measures the fastest of a finished space again.
    """
    from relay_passes.pipeline_options import PipelineOptions
    from tir_schedules.core.template import template_for

    from ..bench.public_regions import public_names, public_regions
    from ..records.config_space import ConfigSpace
    from ..records.locked_file import require_appendable
    from ..records.record_store import RecordStore, latest
    from ..targets.resolve import resolve_target
    from ..tuning.measuring.local_measurer import LocalMeasurer
    from ..tuning.recordings.record_space import record_space

    unknown = ", ".join(sorted(set(names) - set(public_names())))
    if unknown:
        raise click.UsageError(f"no public region {unknown}; --list names them")
    for name in () if only_list else names or public_names():
        require_appendable(folder / f"{name}.jsonl")
    options = PipelineOptions(target=resolve_target(None), threads=1)
    regions = public_regions(options, names)
    if only_list:
        for name, region in regions.items():
            size = len(ConfigSpace.of(region, template_for(region.op), options.machine))
            click.echo(f"{name:22} {size:5} configurations  {region.key}")
        return
    console = error_console()
    for name, region in regions.items():
        path = folder / f"{name}.jsonl"
        store = RecordStore(path, must_exist=False)
        with LocalMeasurer(options.machine, str(options.target), cpu=cpu) as measurer:
            tell = partial(console.print, f"{name}:", highlight=False)
            record_space(region, options.machine, measurer, store, tell)
        tried = latest(store.tried(region, template_for(region.op), options.machine))
        lines = b"".join(located.record.to_line() for located in tried)
        write_whole(path.with_suffix(".jsonl.xz"), lzma.compress(lines, preset=9))
