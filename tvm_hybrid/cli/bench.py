"""`tvm-hybrid bench MODEL`: measures us, ONNX Runtime and stock TVM in one interleaved run.

With `--streams` it measures throughput under several callers, with `--layers` the convolutions of a
network instead. With `--predict` it runs nothing:
it shows what a model of AMX predicts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from microkernels.base.files import require_writable, write_whole

from ..bench.peers.peers import PYTHON_VARIABLE
from .base.console import output_console, print_json, say, turns_bar, working
from .base.models import input_options, note_random, session_of
from .base.options import AT_LEAST_ONE, FILE, compile_options, json_option
from .bench_modes import StreamCounts, Turns, bench_layers, bench_streams, turn_options

if TYPE_CHECKING:
    from ..options import CompileOptions

TURN_SECONDS = 0.1


@click.command("bench")
@click.argument("model", required=False, type=FILE)
@input_options
@click.option(
    "--peers",
    show_default="ort,stock; for layers and streams ort,openvino",
    help="Contestants besides us: ort (ONNX Runtime), openvino, stock (TVM without this plugin).",
)
@turn_options
@click.option(
    "--openvino-python",
    metavar="PYTHON",
    help=f"The Python that has OpenVINO (pip install openvino numpy). Default: {PYTHON_VARIABLE}, "
    "else this one.",
)
@click.option(
    "--streams",
    metavar="N,N,...",
    type=StreamCounts(),
    help="Measure throughput: so many runs at once, which share --threads.",
)
@click.option(
    "--callers",
    show_default="as many as streams",
    type=AT_LEAST_ONE,
    help="Requests under way at once, with --streams.",
)
@click.option(
    "--csv",
    "table",
    metavar="FILE",
    type=FILE,
    help="Write the results into this file, too, as comma-separated values.",
)
@click.option(
    "--layers",
    metavar="NETWORK",
    help="Measure, in place of a MODEL, each convolution of resnet18, in f32 and int8.",
)
@click.option(
    "--markdown",
    type=FILE,
    help="Write the tables of --layers as a page of documentation into this file.",
)
@click.option(
    "--variants",
    is_flag=True,
    help="Let us also run without coarse fusion (fine) and without any (none), with what it costs.",
)
@click.option(
    "--predict",
    is_flag=True,
    help="Run nothing: show what AMX kernels are predicted to do, for MODEL or a table of shapes.",
)
@compile_options()
@json_option
def command(
    model: Path | None,
    arrays: tuple[str, ...],
    archive: Path | None,
    seed: int,
    peers: str | None,
    turns: Turns,
    openvino_python: str | None,
    streams: tuple[int, ...] | None,
    callers: int | None,
    table: Path | None,
    layers: str | None,
    markdown: Path | None,
    variants: bool,
    predict: bool,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Measures MODEL: percentiles and least time of a run, requests a second, GFLOP/s, ratios.

    Results are compared with those of ONNX Runtime without optimisation. A row says by how much a
    contestant differs, where, and why if that is known; exit code 1 if we do.

    The contestants take turns; each runs with the same number of threads on the same inputs. Only
    ratios within one table mean anything. GFLOP/s count matrix products and convolutions, and
    refer to the least time. With --variants the ratio of such a row is what fusion gains.

    With --streams callers send one request after the other, all at once: requests/s are those of
    all callers, times include waiting, and the ratio is of requests/s. Each run has its share of
    --threads; ONNX Runtime's session is called by as many threads, OpenVINO is in throughput mode.

    With --layers each convolution of a network is a model of its own. One table gives the time of
    such a model, whose input and output are NCHW, and that of its kernel alone. Without --threads
    it is measured with one thread and with all.

    With --predict nothing is compiled or run, and no AMX is needed: cycles, share of peak, tile
    instructions and bytes from each level of memory come from a performance model, and are labelled
    so. Without --target it is about Sapphire Rapids.
    """
    if streams is None and callers is not None:
        raise click.UsageError("--callers are those of --streams")
    if table is not None and (predict or layers is not None):
        raise click.UsageError("--csv writes results of a MODEL; --json has those of the others")
    if streams is not None and (predict or layers is not None or variants):
        raise click.UsageError(
            "--streams is for a MODEL; leave --predict, --layers, --variants out"
        )
    if options.keep_open and (predict or layers is not None):
        raise click.UsageError("--predict and --layers are for known sizes; leave --keep-open out")
    if predict:
        if arrays or archive or variants or layers:
            raise click.UsageError(
                "--predict runs nothing; leave --input, --inputs, --variants, --layers out"
            )
        _predict(model, options, as_json)
        return 0
    if layers is not None:
        if model or arrays or archive or variants:
            raise click.UsageError(
                "--layers makes its models; leave MODEL, --input, --inputs, --variants out"
            )
        names = _names(peers, "ort,openvino")
        return bench_layers(
            layers, options, names, *turns.of_layers(), openvino_python, markdown, as_json
        )
    if markdown is not None:
        raise click.UsageError("--markdown writes the tables of --layers")
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    from relay_passes.pipeline_options import FUSION_LEVELS

    from ..bench.bench import bench
    from ..bench.bench_tables import bench_csv, bench_table
    from ..bench.feeds import ProductSums, feeds_of, load_feeds
    from ..bench.peers.peers import PEERS
    from ..frontend import import_onnx
    from ..runtime.feeds import arrays_of

    if table is not None:
        require_writable(table)
    if streams is not None:
        names = _names(peers, "ort,openvino")
        return bench_streams(
            model,
            options,
            load_feeds(arrays, archive),
            seed,
            streams,
            callers,
            names,
            turns,
            openvino_python,
            table,
            as_json,
        )
    names = _names(peers, "ort,stock")
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(PEERS)}")
    if variants and options.fusion != FUSION_LEVELS[0]:
        raise click.UsageError("--variants measures every level of fusion; leave --fusion out")
    given = load_feeds(arrays, archive)
    session = session_of(model, options, given)
    feeds, drawn = feeds_of(session.executable, given, seed)
    options = replace(options, values=arrays_of(session.executable.values))
    lower = {
        level: session_of(model, replace(options, fusion=level, dump_ir=None), {})
        for level in (FUSION_LEVELS[1:] if variants else ())
    }
    shapes = {info.name: feeds[info.name].shape for info in session.executable.inputs}
    options = replace(options, shapes=shapes, **session.executable.manifest.chosen())
    sums = ProductSums(import_onnx(model, shapes, options.values).mod)
    note_random(drawn)
    with turns_bar(f"measuring {model.name}") as (step, turned):
        report = bench(
            session,
            model,
            feeds,
            threads=session.executable.num_threads,
            flops=sums.flops,
            tolerance=sums.tolerance(options.precision),
            options=options,
            peers=names,
            rounds=turns.rounds(10, TURN_SECONDS),
            seconds=turns.length(TURN_SECONDS),
            warmup=turns.warmup,
            openvino_python=openvino_python,
            variants=lower,
            progress=step,
            turns=turned,
        )
    if table is not None:
        write_whole(table, bench_csv(report))
    if as_json:
        print_json(report)
    else:
        ours = "" if report.precision == "auto" else f", our precision: {report.precision}"
        ours += "" if report.fusion == "coarse" else f", our fusion: {report.fusion}"
        ours += "" if report.fast_math == "default" else f", fast_math: {report.fast_math}"
        title = f"threads: {report.threads}{ours}"
        output_console().print(bench_table([report], title=title))
    return 1 if report.wrong else 0


def _names(peers: str | None, default: str) -> list[str]:
    """The contestants of a list with commas."""
    return [name for name in (default if peers is None else peers).split(",") if name]


def _predict(model: Path | None, options: CompileOptions, as_json: bool) -> None:
    """Shows the predictions for a model, or for the table of shapes."""
    from ..bench.scaling.predict import predict_model, predict_shapes, predict_tables
    from ..options import target_of
    from ..runtime.threads import resolve_threads
    from ..targets.resolve import threads_of

    if options.threads is not None or options.weights is not None:
        raise click.UsageError("--predict runs nothing: give --threads a number, and no --weights")
    threads = resolve_threads(threads_of(options.target, options.num_threads))
    options = replace(options, target=options.target or "spr")
    if model is None:
        report = predict_shapes(target_of(options), options.num_threads or 1)
    else:
        with working(f"predicting {model.name}"):
            report = predict_model(model, options, threads, name=model.stem)
    if as_json:
        print_json(report)
        return
    console = output_console()
    for table in predict_tables(report):
        console.print(table)
    if report.advice:
        say(report.advice)
