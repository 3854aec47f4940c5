"""`tvm-hybrid kernels`: speed of every microkernel on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from microkernels.output_file import require_writable, write_whole

from ..report.console import output_console, print_json, working
from .options import json_option


@click.command("kernels")
@click.option(
    "--repeat",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="Turns of each microkernel.",
)
@click.option(
    "--seconds",
    default=0.005,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Length of a turn.",
)
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a Markdown table for documentation into this file.",
)
@json_option
def command(repeat: int, seconds: float, markdown: Path | None, as_json: bool) -> int:
    """Measures every microkernel that this CPU runs, on one thread, against the CPU's own peak.

    The peak of a pair of types is measured in the same run: the fastest tile with its weight in
    registers. Code for instruction sets that the CPU lacks, or that TVM_HYBRID_ISA forbids, is left
    out.
    """
    import msgspec

    from ..report.kernel_speed import markdown_table, measure_kernels
    from ..report.tables import kernel_speed_table

    if markdown is not None:
        require_writable(markdown)
    with working("measuring microkernels"):
        report = measure_kernels(rounds=repeat, seconds=seconds)
    if markdown is not None:
        write_whole(markdown, "# Microkernels\n\n" + markdown_table(report))
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        output_console().print(kernel_speed_table(report))
    return 0
