"""`tvm-hybrid kernels`: speed of every microkernel on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from microkernels.base.files import require_writable, write_whole

from .base.console import output_console, print_json, working
from .base.options import AT_LEAST_ONE, FILE, json_option


@click.command("kernels")
@click.option(
    "--repeat",
    default=5,
    show_default=True,
    type=AT_LEAST_ONE,
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
    type=FILE,
    help="Write a Markdown table for documentation into this file.",
)
@json_option
def command(repeat: int, seconds: float, markdown: Path | None, as_json: bool) -> int:
    """Measures every microkernel that this CPU runs, on one thread, against the CPU's own peak.

    The peak of a pair of types is measured in the same run: the fastest tile with its weight in
    registers. Code for instruction sets that the CPU lacks, or that TVM_HYBRID_ISA forbids, is left
    out.
    """
    from ..bench.bench_tables import kernel_speed_table
    from ..report.kernel_speed import kernel_page, measure_kernels

    if markdown is not None:
        require_writable(markdown)
    with working("measuring microkernels"):
        report = measure_kernels(rounds=repeat, seconds=seconds)
    if markdown is not None:
        write_whole(markdown, "# Microkernels\n\n" + kernel_page(report))
    if as_json:
        print_json(report)
    else:
        output_console().print(kernel_speed_table(report))
    return 0
