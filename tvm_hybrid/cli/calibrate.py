"""`tvm-hybrid calibrate`: measures this machine for the estimates that choose kernels."""

from __future__ import annotations

from pathlib import Path

import click

from microkernels.base.errors import OutputError
from microkernels.base.files import require_writable, why_not_written, write_whole

from .base.console import output_console, working
from .base.options import AT_LEAST_ONE, FILE


@click.command("calibrate")
@click.option("--threads", type=AT_LEAST_ONE, help="Threads to measure. Default: one a core.")
@click.option("--output", type=FILE, help="Write here. Default: a file in the user's cache.")
def command(threads: int | None, output: Path | None) -> int:
    """Measures clock, bandwidths and the cost of a fork, and describes this machine by them.

    Takes some seconds, on an idle machine. A description in the user's cache is in force from
    then on; TVM_HYBRID_MACHINE or, of other commands, --machine names another. `doctor` shows
    which one is.
    """
    from microkernels.machines.host import calibrated_path

    from ..bench.calibrate import calibrate
    from ..runtime.threads import resolve_threads
    from ..targets.resolve import cpu_name, host_target

    path = output or _in_cache(calibrated_path(cpu_name(host_target())))
    require_writable(path)
    with working("measuring this machine"):
        found = calibrate(resolve_threads(threads, here=True))
    write_whole(path, found.to_json())
    console = output_console()
    for name, number in found.numbers.items():
        console.print(f"{name}: {number.value} ({number.error or 0:.0%} apart)")
    console.print(f"written to {path}")
    return 0


def _in_cache(path: Path) -> Path:
    """The path, in a folder that there is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(why_not_written(path, error)) from error
    return path
