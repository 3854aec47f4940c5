"""`tvm-hybrid bench MODEL`: measures us, ONNX Runtime and stock TVM in turns, in one run.

With `--streams` it measures throughput under several callers, with `--layers` the convolutions of a
network. With `--predict` it runs nothing, but shows predictions of an AMX performance model.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from microkernels.base.files import write_whole

from ..bench.peers.peers import PYTHON_VARIABLE
from .base import options as shared
from .base.console import show, turns_bar, working
from .base.models import Inputs, input_options, session_of, sized, source_option, sums_of

if TYPE_CHECKING:
    from ..bench.bench import BenchReport, ThroughputReport
    from ..bench.bench_tables import BenchTable
    from ..options import CompileOptions


WARMUP = 0.1


@dataclass(frozen=True)
class Turns:
    """Requested turns; None for values that were not given.

    Attributes
    ----------
    repeat : int or None
        Turns of each contestant.
    seconds : float or None
        Length of a turn.
    duration : float or None
        Seconds of all turns of a contestant.
    warmup : float
        Seconds before measurements.
    """

    repeat: int | None
    seconds: float | None
    duration: float | None
    warmup: float

    def __post_init__(self) -> None:
        if self.duration is not None and self.repeat is not None:
            raise click.UsageError("--duration and --repeat exclude each other")
        if self.duration is not None and self.seconds == 0:
            raise click.UsageError("--duration needs turns that take some --seconds")

    def length(self, default: float) -> float:
        """Seconds of a turn, at most the whole duration."""
        length = default if self.seconds is None else self.seconds
        return length if self.duration is None else min(length, self.duration)

    def rounds(self, default: int, length: float) -> int:
        """Number of turns of each contestant; `length` is the default length of a turn."""
        if self.duration is None:
            return self.repeat or default
        return math.ceil(self.duration / self.length(length) - 1e-9)

    def of_layers(self) -> tuple[int | None, float | None]:
        """The values that `--layers` uses.

        Raises
        ------
        click.UsageError
            If other values were given.
        """
        if self.duration is not None or self.warmup != WARMUP:
            raise click.UsageError("--layers goes with --repeat and --seconds")
        return self.repeat, self.seconds


@dataclass(frozen=True)
class BenchRequest:
    """The arguments of `tvm-hybrid bench`; the command's help explains them.

    Attributes
    ----------
    model : Path or None
        The model; None with `layers`, or for a table of predictions.
    inputs : Inputs
    source : Path or None
        The ONNX file that a library was made of.
    hint : str or None
        "latency" or "throughput": one run at a time, or several.
    peers : str or None
        Names separated by commas.
    turns : Turns
    openvino_python : str or None
    streams : tuple of int or None
    callers : int or None
    table : Path or None
        File of comma-separated values.
    layers : str or None
        A network.
    markdown : Path or None
    variants, predict : bool
    options : CompileOptions
    as_json : bool
    choose : bool
        Whether only the best of `streams` is measured against the peers.
    """

    model: Path | None
    inputs: Inputs
    source: Path | None
    hint: str | None
    peers: str | None
    turns: Turns
    openvino_python: str | None
    streams: tuple[int, ...] | None
    callers: int | None
    table: Path | None
    layers: str | None
    markdown: Path | None
    variants: bool
    predict: bool
    options: CompileOptions
    as_json: bool
    choose: bool = False

    def run(self) -> int:
        """Runs the benchmark; returns the exit code, 1 if our results are wrong.

        Raises
        ------
        click.UsageError
            If arguments exclude each other.
        """
        if self.hint is not None and self.streams is not None:
            raise click.UsageError("--hint chooses the streams: leave --streams out")
        if self.hint == "throughput":
            numbers = doubled_up_to(self._threads())
            return replace(self, hint=None, streams=numbers, choose=True).run()
        if self.streams is None and self.callers is not None:
            raise click.UsageError("--callers are those of --streams")
        special = self.predict or self.layers is not None
        if self.source is not None and (special or self.streams is not None):
            raise click.UsageError("--onnx is for a library; leave --predict, --layers, ... out")
        if self.table is not None and special:
            raise click.UsageError(
                "--csv writes results of a MODEL; --json has those of the others"
            )
        if self.streams is not None and (special or self.variants):
            raise click.UsageError(
                "--streams is for a MODEL; leave --predict, --layers, --variants out"
            )
        if self.options.keep_dynamic and special:
            raise click.UsageError(
                "--predict and --layers are for static sizes; leave --keep-dynamic out"
            )
        if self.predict:
            if self.inputs or self.variants or self.layers:
                raise click.UsageError(
                    "--predict runs nothing; leave --input, --inputs, --variants, --layers out"
                )
            return self._predict()
        if self.layers is not None:
            if self.model or self.inputs or self.variants:
                raise click.UsageError(
                    "--layers makes its models; leave MODEL, --input, --inputs, --variants out"
                )
            return self._measure_layers(self.layers)
        if self.markdown is not None:
            raise click.UsageError("--markdown writes the tables of --layers")
        if self.model is None:
            raise click.UsageError("Missing argument 'MODEL'.")
        if self.streams is not None:
            return self._measure_streams(self.model, self.streams)
        return self._measure_model(self.model)

    def _names(self, default: str, known: Collection[str], unknown: str) -> list[str]:
        """The contestants' names; refuses a name that is not in `known` with the text `unknown`."""
        names = (default if self.peers is None else self.peers).split(",")
        for name in filter(None, names):
            if name not in known:
                raise click.BadParameter(f"{name!r} {unknown}")
        return list(filter(None, names))

    def _threads(self) -> int:
        """Number of threads that all runs share."""
        from ..runtime.threads import resolve_threads
        from ..targets.resolve import threads_of

        return resolve_threads(threads_of(self.options.target, self.options.num_threads), here=True)

    def _measure_model(self, model: Path) -> int:
        from relay_passes.pipeline_options import FUSION_LEVELS

        from ..bench.bench import bench
        from ..bench.bench_tables import bench_table
        from ..bench.compare import Tolerance
        from ..bench.peers.peers import PEERS
        from ..library.artifact import is_library
        from ..runtime.feeds import arrays_of

        alone = is_library(model) and self.source is None
        if self.source is not None and not is_library(model):
            raise click.UsageError("--onnx names the model that a library was made of")
        if alone and self.peers:
            raise click.UsageError("name the model that the library was made of, by --onnx")
        default = "" if alone else "ort,stock"
        names = self._names(default, PEERS, f"is not one of {', '.join(PEERS)}")
        if self.variants and self.options.fusion != FUSION_LEVELS[0]:
            raise click.UsageError("--variants measures every level of fusion; leave --fusion out")
        options = sized(model, self.options, self.inputs.given)
        session = session_of(model, options, self.inputs.given)
        program = session.executable
        feeds, _ = self.inputs.feeds_of(program)
        options = replace(options, values=arrays_of(program.values))
        lower = {
            level: session_of(model, replace(options, fusion=level, dump_ir=None), {})
            for level in (FUSION_LEVELS[1:] if self.variants else ())
        }
        shapes = {info.name: feeds[info.name].shape for info in program.inputs}
        options = replace(options, shapes=shapes, **program.manifest.chosen())
        sums = None if alone else sums_of(self.source or model, program, feeds)
        with turns_bar(f"measuring {model.name}") as (step, turned):
            report = bench(
                session,
                self.source or model,
                feeds,
                threads=program.num_threads,
                flops=sums.flops if sums else 0,
                tolerance=sums.tolerance(options.precision) if sums else Tolerance.given(0.0),
                options=options,
                peers=names,
                rounds=self.turns.rounds(10, 0.1),
                seconds=self.turns.length(0.1),
                warmup=self.turns.warmup,
                openvino_python=self.openvino_python,
                variants=lower,
                progress=step,
                turns=turned,
            )
        ours = "" if report.precision == "auto" else f", our precision: {report.precision}"
        ours += "" if report.fusion == "coarse" else f", our fusion: {report.fusion}"
        ours += "" if report.fast_math == "default" else f", fast_math: {report.fast_math}"
        return self._shown(report, bench_table([report], f"threads: {report.threads}{ours}"))

    def _shown(self, report: BenchReport | ThroughputReport, table: BenchTable) -> int:
        """Writes and shows the results of a model; returns the exit code."""
        if self.table is not None:
            from ..bench.bench_tables import bench_csv

            write_whole(self.table, bench_csv(report))
        show(report, self.as_json, table)
        # A user who names contestants wants all of them.
        missing = self.peers is not None and not all(row.timing for row in report.rows)
        return 1 if report.wrong or missing else 0

    def _measure_streams(self, model: Path, streams: tuple[int, ...]) -> int:
        from ..bench.bench import measure_throughput
        from ..bench.bench_tables import throughput_table
        from ..library.artifact import is_library
        from ..session.inference_session import InferenceSession

        given, options = self.inputs.given, self.options
        names = self._names(
            "ort,openvino", ("ort", "openvino"), "has no streams; ort and openvino can be measured"
        )
        if options.threads is not None or is_library(model):
            raise click.UsageError(
                "--streams shares out a number of --threads: it takes neither a place nor a library"
            )
        options = sized(model, options, given)
        threads = self._threads()
        shares = {count: max(1, threads // count) for count in streams}
        programs = {
            share: session_of(
                model, replace(options, num_threads=share, dump_ir=None), given
            ).executable
            for share in dict.fromkeys(shares.values())
        }
        sessions = {
            count: InferenceSession(programs[share], streams=count)
            for count, share in shares.items()
        }
        program = programs[shares[streams[0]]]
        feeds, _ = self.inputs.feeds_of(program)
        precision = program.manifest.precision
        with turns_bar(f"measuring {model.name}") as (step, turned):
            report = measure_throughput(
                sessions,
                model,
                feeds,
                threads=threads,
                tolerance=sums_of(model, program, feeds).tolerance(precision),
                known=[value.name for value in program.values],
                callers=self.callers,
                choose=self.choose,
                peers=names,
                rounds=self.turns.rounds(5, 1.0),
                seconds=self.turns.length(1.0),
                warmup=self.turns.warmup,
                precision=precision,
                openvino_python=self.openvino_python,
                progress=step,
                turns=turned,
            )
        ours = "" if precision == "auto" else f", our precision: {precision}"
        title = f"{report.model}, threads: {threads}{ours}"
        return self._shown(report, throughput_table(report, title))

    def _measure_layers(self, network: str) -> int:
        """Measures with the given number of threads; if none is given, with one and with all."""
        from ..bench.conv_layers import measure_layers
        from ..bench.layer_models import NETWORKS, layer_tables, markdown_page
        from ..options import given
        from ..runtime.threads import resolve_threads

        options = self.options
        repeat, seconds = self.turns.of_layers()
        if network not in NETWORKS:
            raise click.BadParameter(f"{network!r} is not one of {', '.join(NETWORKS)}")
        if given(options) - {"num_threads", "fast_math", "records"}:
            raise click.UsageError(
                "--layers goes with --threads, --fast-math and --records, and no other way to "
                "compile"
            )
        names = self._names(
            "ort,openvino", ("ort", "openvino"), "measures no layers; ort and openvino do"
        )
        everything = resolve_threads(options.num_threads, here=True)
        with working(f"measuring the layers of {network}") as step:
            report = measure_layers(
                network,
                NETWORKS[network],
                sorted({options.num_threads or 1, everything}),
                peers=names,
                rounds=repeat or 20,
                seconds=0.03 if seconds is None else seconds,
                openvino=self.openvino_python,
                options=options,
                progress=step,
            )
        if self.markdown is not None:
            write_whole(self.markdown, markdown_page(report))
        show(report, self.as_json, *layer_tables(report))
        return 1 if any(row.wrong for row in report.rows) else 0

    def _predict(self) -> int:
        """Shows predictions for a model, or for the table of shapes."""
        from ..bench.predict import predict_model, predict_shapes, predict_tables
        from ..options import target_of
        from ..runtime.threads import resolve_threads
        from ..targets.resolve import threads_of

        model, options = self.model, self.options
        if options.threads is not None or options.weights is not None:
            raise click.UsageError(
                "--predict runs nothing: give --threads a number, and no --weights"
            )
        threads = resolve_threads(threads_of(options.target, options.num_threads))
        options = replace(options, target=options.target or "spr")
        if model is None:
            report = predict_shapes(target_of(options), options.num_threads or 1)
        else:
            options = sized(model, options, {})
            with working(f"predicting {model.name}"):
                report = predict_model(model, options, threads, name=model.stem)
        advice = [report.advice] if report.advice else []
        show(report, self.as_json, *predict_tables(report), *advice)
        return 0


def doubled_up_to(threads: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, then the number of threads."""
    return (*(1 << power for power in range((threads - 1).bit_length())), threads)


@click.command("bench", cls=shared.FileCommand)
@click.argument("model", required=False, type=shared.FILE)
@input_options
@source_option
@click.option(
    "--hint",
    type=click.Choice(["latency", "throughput"]),
    help="latency: one run at a time on all threads. throughput: the fastest number of streams of "
    "1, 2, 4, ... and one for each thread, each tried briefly.",
)
@click.option(
    "--peers",
    show_default="ort,stock; for layers and streams ort,openvino",
    help="Contestants in addition to us: ort (ONNX Runtime), openvino, stock (TVM without us).",
)
@click.option(
    "--repeat",
    show_default="10; for layers 20, for streams 5",
    type=shared.AT_LEAST_ONE,
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
    type=shared.SECONDS,
    help="Seconds that each contestant is measured, with each number of streams, instead of "
    "--repeat.",
)
@click.option(
    "--warmup",
    default=WARMUP,
    type=click.FloatRange(min=0),
    help="Seconds that each contestant runs before it is measured, after its first run.",
)
@click.option(
    "--openvino-python",
    metavar="PYTHON",
    help=f"The Python that has OpenVINO (pip install openvino numpy). Default: {PYTHON_VARIABLE}, "
    "else this one.",
)
@click.option(
    "--streams",
    metavar="N,N,...",
    type=shared.counts_of("numbers from 1 up"),
    help="Measure throughput with this many concurrent runs, which share --threads.",
)
@click.option(
    "--callers",
    show_default="as many as streams",
    type=shared.AT_LEAST_ONE,
    help="Concurrent requests, with --streams.",
)
@click.option(
    "--csv",
    "table",
    metavar="FILE",
    type=shared.OutputFile(".csv", ".txt"),
    help="Also write the results into this file as comma-separated values.",
)
@click.option(
    "--layers",
    metavar="NETWORK",
    help="Measure each convolution of resnet18, in f32 and int8, instead of a MODEL.",
)
@click.option(
    "--markdown",
    type=shared.OutputFile(".md"),
    help="Write the tables of --layers as a page of documentation into this file.",
)
@click.option(
    "--variants",
    is_flag=True,
    help="Also run us without coarse fusion (fine) and without any (none), to show its gain.",
)
@click.option(
    "--predict",
    is_flag=True,
    help="Run nothing: show predictions for AMX kernels, for MODEL or a table of shapes.",
)
@shared.compile_options()
def command(**settings: Any) -> int:
    """Measures MODEL: percentiles and least time of a run, requests a second, GFLOP/s, ratios.

    Results are compared with those of ONNX Runtime without optimisation. A row says how, where and,
    if known, why a contestant differs; exit code 1 if we differ.

    The contestants take turns, with equal numbers of threads and equal inputs. Only ratios within
    one table mean anything. GFLOP/s count matrix products and convolutions, and refer to the least
    time. With --variants, the ratio of a lower fusion level shows what fusion gains.

    With --streams, each caller sends one request after the other, all callers at once: requests/s
    count all callers, times include waiting, and the ratio is of requests/s. Each run has its share
    of --threads; ONNX Runtime's session is called by as many threads, OpenVINO is in throughput
    mode. --hint throughput tries numbers of streams with us, and measures the best against the
    peers.

    With --layers, each convolution of a network is a separate model. One table shows the time of
    such a model, whose input and output are NCHW, and that of its kernel alone. Without --threads
    it is measured with one thread and with all.

    MODEL is an ONNX file or a library that `compile` wrote. A library is measured alone, or against
    the peers with the model that --onnx names.

    With --predict nothing is compiled or run, and no AMX is needed: cycles, share of peak, tile
    instructions and bytes from each level of memory come from a performance model, and are labelled
    so. The default --target is Sapphire Rapids.
    """
    turns = Turns(**{each.name: settings.pop(each.name) for each in fields(Turns)})
    return BenchRequest(turns=turns, **settings).run()
