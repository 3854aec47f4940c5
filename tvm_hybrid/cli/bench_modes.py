"""Parts of `tvm-hybrid bench`: convolutions one by one, many streams, turns."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from microkernels.base.files import require_writable, write_whole

from .base.console import output_console, print_json, turns_bar, working
from .base.models import note_random, session_of
from .base.options import AT_LEAST_ONE, SECONDS

if TYPE_CHECKING:
    import numpy as np

    from ..options import CompileOptions

WARMUP = 0.1


@dataclass(frozen=True)
class Turns:
    """What was asked for; None where nothing was.

    Attributes
    ----------
    repeat : int or None
        Turns of each contestant.
    seconds : float or None
        Length of a turn.
    duration : float or None
        Seconds of all turns of a contestant.
    warmup : float
        Seconds that do not count.
    """

    repeat: int | None
    seconds: float | None
    duration: float | None
    warmup: float

    def length(self, default: float) -> float:
        """Seconds of a turn; not more than there are of all."""
        length = default if self.seconds is None else self.seconds
        return length if self.duration is None else min(length, self.duration)

    def rounds(self, default: int, length: float) -> int:
        """How many turns each contestant has, if a turn takes `length` by default."""
        if self.duration is None:
            return self.repeat or default
        return math.ceil(self.duration / self.length(length) - 1e-9)

    def of_layers(self) -> tuple[int | None, float | None]:
        """What `--layers` takes of it.

        Raises
        ------
        click.UsageError
            If more was asked for.
        """
        if self.duration is not None or self.warmup != WARMUP:
            raise click.UsageError("--layers goes with --repeat and --seconds")
        return self.repeat, self.seconds


def turn_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--repeat`, `--seconds`, `--duration` and `--warmup`; the command gets `turns`."""

    @click.option(
        "--repeat",
        show_default="10; for layers 20, for streams 5",
        type=AT_LEAST_ONE,
        help="Turns of each contestant.",
    )
    @click.option(
        "--seconds",
        show_default="0.1; for layers 0.03, for streams 1",
        type=click.FloatRange(min=0),
        help="Length of a turn.",
    )
    @click.option(
        "--duration",
        type=SECONDS,
        help="Seconds that each contestant is measured, with each number of streams, in place of "
        "--repeat.",
    )
    @click.option(
        "--warmup",
        default=WARMUP,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Seconds that each contestant runs before it is measured, after its first run.",
    )
    @functools.wraps(command)
    def with_turns(
        *arguments: Any,
        repeat: int | None,
        seconds: float | None,
        duration: float | None,
        warmup: float,
        **others: Any,
    ) -> Any:
        if duration is not None and repeat is not None:
            raise click.UsageError("--duration and --repeat exclude each other")
        if duration is not None and seconds == 0:
            raise click.UsageError("--duration needs turns that take some --seconds")
        return command(*arguments, turns=Turns(repeat, seconds, duration, warmup), **others)

    return with_turns


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
    from ..bench.layers.layer_models import NETWORKS, layer_tables, markdown_page
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


STREAMS_TURNS, STREAMS_TURN_SECONDS = 5, 1.0


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
    from ..bench.feeds import ProductSums, feeds_of
    from ..bench.throughput import measure_throughput
    from ..frontend import import_onnx
    from ..library.artifact import is_library
    from ..runtime.feeds import arrays_of
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
            rounds=turns.rounds(STREAMS_TURNS, STREAMS_TURN_SECONDS),
            seconds=turns.length(STREAMS_TURN_SECONDS),
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
