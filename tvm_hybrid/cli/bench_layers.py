"""What `tvm-hybrid bench --layers` does: measures the convolutions of a network one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from microkernels.base.files import require_writable, write_whole

from .console import output_console, print_json, working

if TYPE_CHECKING:
    from ..options import CompileOptions

TURNS, TURN_SECONDS = 20, 0.03


def bench_layers(
    network: str,
    options: CompileOptions,
    peers: Sequence[str],
    repeat: int | None,
    seconds: float | None,
    openvino: str | None,
    markdown: Path | None,
    as_json: bool,
) -> int:
    """Measures with the number of threads in the options; without one, with one and with all.

    Returns the exit code: 1 if results of ours are wrong.
    """
    from ..bench.layers.conv_layers import measure_layers
    from ..bench.layers.layer_models import NETWORKS
    from ..bench.layers.layer_report import layer_tables, markdown_page
    from ..options import given
    from ..runtime.threads import resolve_threads

    if network not in NETWORKS:
        raise click.BadParameter(f"{network!r} is not one of {', '.join(NETWORKS)}")
    if given(options) - {"num_threads", "fast_math", "records"}:
        raise click.UsageError(
            "--layers goes with --threads, --fast-math and --records, and no other way to compile"
        )
    unknown = [name for name in peers if name not in ("ort", "openvino")]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} measures no layers; ort and openvino do")
    if markdown is not None:
        require_writable(markdown)
    threads = sorted({options.num_threads or 1, resolve_threads(options.num_threads, here=True)})
    with working(f"measuring the layers of {network}") as step:
        report = measure_layers(
            network,
            NETWORKS[network],
            threads,
            peers=peers,
            rounds=repeat or TURNS,
            seconds=TURN_SECONDS if seconds is None else seconds,
            openvino=openvino,
            options=options,
            progress=step,
        )
    if markdown is not None:
        write_whole(markdown, markdown_page(report))
    if as_json:
        print_json(report)
    else:
        for table in layer_tables(report):
            output_console().print(table)
    return 1 if any(row.wrong for row in report.rows) else 0
