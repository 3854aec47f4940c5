"""What `tvm-hybrid bench MODEL --streams N,N` does: measures throughput under several callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from microkernels.base.files import write_whole

from .bench_turns import Turns
from .console import output_console, print_json, turns_bar
from .models import note_random, session_of

if TYPE_CHECKING:
    import numpy as np

    from ..options import CompileOptions

TURNS, TURN_SECONDS = 5, 1.0


class StreamCounts(click.ParamType["tuple[int, ...]"]):
    """Numbers of streams with commas between them."""

    name = "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers, each once, as they are given."""
        if isinstance(value, tuple):
            return value
        words = str(value).split(",")
        if not all(word.isascii() and word.isdigit() and int(word) for word in words):
            self.fail(f"{value!r} is not a list of numbers from 1 up, such as 1,2,4", param, ctx)
        return tuple(dict.fromkeys(map(int, words)))


def bench_streams(
    model: Path,
    options: CompileOptions,
    given: Mapping[str, np.ndarray],
    seed: int,
    streams: Sequence[int],
    callers: int | None,
    peers: Sequence[str],
    turns: Turns,
    openvino_python: str | None,
    table: Path | None,
    as_json: bool,
) -> int:
    """Measures each number of streams; returns the exit code: 1 if results of ours are wrong."""
    from ..bench.bench_tables import bench_csv, throughput_table
    from ..bench.feeds import feeds_of
    from ..bench.flops import ProductSums
    from ..bench.throughput import measure_throughput
    from ..frontend import import_onnx
    from ..library.artifact import is_library
    from ..runtime.input_values import arrays_of
    from ..runtime.threads import resolve_threads
    from ..session.inference_session import InferenceSession
    from ..targets.resolve import threads_of

    unknown = [name for name in peers if name not in ("ort", "openvino")]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} has no streams; ort and openvino can be measured")
    if options.threads is not None or is_library(model):
        raise click.UsageError(
            "--streams shares out a number of --threads: it takes neither a place nor a library"
        )
    threads = resolve_threads(threads_of(options.target, options.num_threads), here=True)
    programs: dict[int, Any] = {}
    for count in streams:
        share = max(1, threads // count)
        if share not in programs:
            own = replace(options, num_threads=share, dump_ir=None)
            programs[share] = session_of(model, own, given).executable
    sessions = {
        count: InferenceSession(programs[max(1, threads // count)], streams=count)
        for count in streams
    }
    program = sessions[streams[0]].executable
    feeds, drawn = feeds_of(program, given, seed)
    values = arrays_of(program.values)
    shapes = {info.name: feeds[info.name].shape for info in program.inputs}
    precision = program.manifest.precision
    note_random(drawn)
    with turns_bar(f"measuring {model.name}") as (step, turned):
        report = measure_throughput(
            sessions,
            model,
            feeds,
            threads=threads,
            tolerance=ProductSums(import_onnx(model, shapes, values).mod).tolerance(precision),
            known=list(values),
            callers=callers,
            peers=peers,
            rounds=turns.rounds(TURNS, TURN_SECONDS),
            seconds=turns.length(TURN_SECONDS),
            warmup=turns.warmup,
            precision=precision,
            openvino_python=openvino_python,
            progress=step,
            turns=turned,
        )
    if table is not None:
        write_whole(table, bench_csv(report))
    if as_json:
        print_json(report)
    else:
        ours = "" if precision == "auto" else f", our precision: {precision}"
        title = f"{report.model}, threads: {threads}{ours}"
        output_console().print(throughput_table(report, title))
    return 1 if report.wrong else 0
