"""Commands that make and run programs: `compile`, `run`, `check`, `serve`, `verify`, `quantize`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from microkernels.base.errors import (
    ArtifactError,
    CompileError,
    ShapeError,
    UnsupportedOperatorError,
    VerifyError,
)
from microkernels.base.files import replacing

from .base import options as shared
from .base.console import error_console, say, show, working
from .base.models import (
    Inputs,
    dynamic_inputs,
    input_options,
    session_of,
    sized,
    source_option,
    stages_shown,
    sums_of,
)

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from ..options import CompileOptions


@shared.model_command("compile")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE.so",
    type=shared.OutputFile(".so"),
    help="The library to write.",
)
@shared.compile_options()
def compile_(model: Path, output: Path, options: CompileOptions, as_json: bool) -> int:
    """Compiles MODEL into a library for `tvm-hybrid run`, `tvm_hybrid.load` or TVM's runtime.

    Sizes that the model leaves dynamic stay dynamic, unless --dim or --shape gives a number.
    """
    from ..library.artifact import is_library

    if is_library(model):
        raise click.UsageError(f"{model} is compiled already")
    start = time.perf_counter()
    from .. import compile as compile_model

    with stages_shown(f"compiling {model.name}") as begin:
        try:
            executable = compile_model(model, replace(options, keep_dynamic=True))
        except (CompileError, UnsupportedOperatorError, ShapeError):
            # Static sizes may help: most operators that are refused here accept them.
            if dynamic := [info for info in dynamic_inputs(model, options)[0] if info.is_dynamic]:
                text = f"dynamic: {', '.join(map(str, dynamic))}; --dim makes a size static"
                say(text, to=error_console())
            raise
        begin("writing the library")
        path = executable.export(output)
    seconds = time.perf_counter() - start
    manifest = executable.manifest
    fallback = manifest.fallback
    size = path.stat().st_size
    names = ("cpu", "isa", "threads", "precision", "fusion", "fast_math")
    found = {
        "library": str(path),
        "bytes": size,
        "seconds": seconds,
        **{name: getattr(manifest, name) for name in names},
        "taken": manifest.coverage.taken,
        "nodes": manifest.coverage.nodes,
        "fallback": fallback and {"cpu": fallback.cpu, "isa": fallback.isa},
    }
    second = [] if fallback is None else [f"fallback: {fallback.cpu} ({fallback.isa})"]
    show(
        found,
        as_json,
        f"{path}: {size / 1e6:.1f} MB in {seconds:.1f} s",
        f"for {manifest.cpu} ({manifest.isa}), threads: {manifest.threads}, "
        f"precision: {manifest.precision}, fusion: {manifest.fusion}, "
        f"fast_math: {manifest.fast_math}",
        *second,
        executable.explain().summary(),
    )
    return 0


@click.command("check")
@click.argument("library", type=shared.FILE)
@shared.json_option
def check(library: Path, as_json: bool) -> int:
    """Checks LIBRARY, which `compile` wrote, for damage; exit code 1 if there is any.

    Loading checks everything but the weights; this command reads them, too. No code of the library
    is executed.
    """
    from ..library.artifact import read_manifest

    if not library.exists():
        raise ArtifactError(f"there is no library {library}; check the path")
    try:
        manifest = read_manifest(library, verify=True)
    except ArtifactError as error:
        raise VerifyError(str(error)) from error
    size, count = library.stat().st_size, len(manifest.weights)
    weights = sum(each.size for each in manifest.weights)
    found = {"bytes": size, "weights": count, "weight_bytes": weights}
    show(found, as_json, f"{library} is whole: {size} bytes, {weights} of them {count} weights")
    return 0


@shared.model_command("run")
@input_options
@click.option(
    "--output",
    metavar="FILE.npz",
    type=shared.OutputFile(".npz"),
    help="File for the outputs, by name.",
)
@shared.compile_options()
def run(
    model: Path, inputs: Inputs, output: Path | None, options: CompileOptions, as_json: bool
) -> int:
    """Runs MODEL, an ONNX file or a library that `compile` wrote."""
    from ..bench.feeds import save_arrays

    options = sized(model, options, inputs.given)
    session = session_of(model, options, inputs.given)
    feeds, drawn = inputs.feeds_of(session.executable)
    results = session.run(None, feeds)
    names = [info.name for info in session.get_outputs()]
    outputs = dict(zip(names, results, strict=True))
    if output is not None:
        with replacing(output, what="the outputs to") as draft:
            save_arrays(draft, outputs)
    shown: dict[str, Any] = {}
    lines: list[str] = []
    for name, array in outputs.items():
        values = array.tolist() if array.size <= 1000 else None
        shown[name] = {"shape": array.shape, "dtype": str(array.dtype), "values": values}
        lines += [f"{name}: {array.dtype}[{', '.join(map(str, array.shape))}]", str(array)]
    show({"random_inputs": drawn, "outputs": shown}, as_json, *lines)
    return 0


@click.command("serve", cls=shared.FileCommand)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", type=shared.FILE)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Name of a model for clients; once for each, in order. Default: the files' names.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port",
    default=8000,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0: any free port.",
)
@click.option(
    "--streams", default=1, type=shared.AT_LEAST_ONE, help="Concurrent runs, which share --threads."
)
@click.option(
    "--queue-size",
    type=shared.AT_LEAST_ONE,
    help="Most waiting runs; further ones are refused with 503. Default: four for each stream.",
)
@click.option(
    "--max-batch",
    default=1,
    type=shared.AT_LEAST_ONE,
    help="Most rows of requests that are combined into one run; 1: no batching.",
)
@click.option(
    "--max-delay-ms",
    default=2.0,
    type=click.FloatRange(min=0),
    help="Milliseconds that a request waits for others to be combined with.",
)
@shared.compile_options(*shared.OF_CODE, "num_threads", json=False)
def serve(
    models: Sequence[Path],
    names: Sequence[str],
    max_batch: int,
    max_delay_ms: float,
    host: str,
    port: int,
    **settings: Any,
) -> None:
    """Serves MODELs over HTTP, by the inference protocol, version 2.

    Needs more packages: pip install fastapi prometheus_client uvicorn. Batches need models whose
    first dimension is dynamic, and whose rows do not depend on each other.
    """
    try:
        import uvicorn

        from ..serve.app import Server
    except ImportError as error:
        packages = "fastapi prometheus_client uvicorn"
        raise click.UsageError(
            f"{error.name} is not installed; pip install {packages} brings it"
        ) from error
    from ..runtime.threads import resolve_threads
    from ..session.inference_session import InferenceSession

    names = names or [model.stem for model in models]
    if len(names) != len(models) or len({*names}) < len(names):
        raise click.UsageError(
            f"{len(models)} models have the names {', '.join(names)}: give each one of its own by "
            "--name"
        )
    console, sessions = error_console(), {}
    streams = settings["streams"]
    threads = resolve_threads(settings["options"].num_threads, here=True)
    for name, model in zip(names, models, strict=True):
        say(f"{name}: compiling {model}", to=console)
        sessions[name] = InferenceSession(model, **settings)
        shares = f"streams: {streams}, threads of each: {max(threads // streams, 1)}"
        say(f"{name}: ready at /v2/models/{name}; {shares}", to=console)
    server = Server(sessions, max_batch, max_delay_ms / 1000)
    uvicorn.run(server.application, host=host, port=port, log_level="info")


@shared.model_command("verify")
@input_options
@source_option
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Largest error relative to an output's largest value. Default: derived from the model.",
)
@shared.compile_options()
def verify(
    model: Path,
    inputs: Inputs,
    source: Path | None,
    tolerance: float | None,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Compares MODEL's outputs with ONNX Runtime's; exit code 1 if they differ.

    The reference is ONNX Runtime without graph optimisation. A difference is traced to the first
    node and region that show it. MODEL is an ONNX file, or a library that `compile` wrote; then
    --onnx names the model that it was made of.
    """
    import msgspec

    from .. import compile as compile_model
    from ..bench.bench_tables import verify_table
    from ..bench.compare import Tolerance
    from ..bench.verify import locate
    from ..bench.verify import verify as verify_outputs
    from ..frontend.onnx.reader.read_model import read_model
    from ..library.artifact import is_library
    from ..runtime.feeds import arrays_of
    from ..session.inference_session import InferenceSession

    if is_library(model) != (source is not None):
        raise click.UsageError(
            "--onnx names the model that a library was made of: give it with a library, and only so"
        )
    proto = read_model(source or model)
    options = sized(model, options, inputs.given)
    session = session_of(model, options, inputs.given)
    program = session.executable
    feeds, _ = inputs.feeds_of(program)
    options = replace(options, values=arrays_of(program.values), **program.manifest.chosen())
    if source is not None:
        shapes = {info.name: feeds[info.name].shape for info in program.inputs}
        options = replace(options, shapes=shapes, num_threads=program.num_threads)
    if tolerance is None:
        sums = sums_of(proto, program, feeds)
        allowed = sums.tolerance(program.manifest.precision)
    else:
        allowed = Tolerance.given(tolerance)

    def evaluate(prefix: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        executable = compile_model(prefix, options)
        return InferenceSession(executable, progress=False).run(None, feeds), executable.explain()

    report = verify_outputs(proto, session.run(None, feeds), feeds, allowed)
    if not report.passed:
        with working("looking for the first region that differs"):
            difference = locate(proto, feeds, allowed, evaluate)
        report = msgspec.structs.replace(report, first_difference=difference)
    first = [] if report.first_difference is None else [str(report.first_difference)]
    found = {"passed": report.passed, **msgspec.to_builtins(report)}
    show(found, as_json, verify_table(report), *first)
    return 0 if report.passed else 1


@shared.model_command("quantize")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE.onnx",
    type=shared.OutputFile(".onnx"),
    help="The model to write.",
)
@click.option(
    "--data",
    metavar="DIR|FILE.npz",
    type=click.Path(path_type=Path),
    help="Samples: a folder of .npz (arrays by input), .npy or input_0.pb files, or "
    "one .npz with the samples along the first axis of its arrays.",
)
@click.option(
    "--static",
    "mode",
    flag_value="static",
    default=True,
    show_default=False,
    help="Ranges of activations come from --data (the default).",
)
@click.option(
    "--dynamic",
    "mode",
    flag_value="dynamic",
    help="Ranges of activations are computed in every run; only products are quantised.",
)
@click.option(
    "--weights",
    "bits",
    type=click.Choice(["4", "8"]),
    help="Only weights of products become narrow, with this many bits (MatMulNBits).",
)
@click.option(
    "--block",
    default=32,
    type=shared.AT_LEAST_ONE,
    help="Number of weights that share a scale with --weights.",
)
@click.option(
    "--weight-range",
    default="auto",
    type=click.Choice(["auto", "full", "reduced"]),
    help="Weights of 8 bits (full) or 7 (reduced). auto: 7 for a CPU without VNNI, where it is "
    "faster.",
)
@click.option(
    "--calibration",
    default="minmax",
    type=click.Choice(["minmax", "entropy", "percentile"]),
    help="How ranges are computed from the samples.",
)
@click.option(
    "--operators",
    metavar="Conv,MatMul",
    help="Types of nodes to quantise. Default: products and convolutions, and with "
    "convolutions the operators between them.",
)
@click.option("--exclude", metavar="NODE", multiple=True, help="A node that stays float32.")
@click.option("--samples", default=128, type=shared.AT_LEAST_ONE, help="Most samples to read.")
@shared.target_option("--target", "CPU that the model is meant for. Default: this CPU.")
@shared.num_threads_option
@click.option(
    "--seconds",
    default=0.05,
    type=click.FloatRange(min=0),
    help="Length of a turn of the measurement; 0: no measurement.",
)
@click.option("--seed", default=0, help="Seed of random inputs.")
@shared.json_option
def quantize(
    model: Path,
    output: Path,
    mode: str,
    bits: str | None,
    operators: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Quantises float32 MODEL by onnxruntime's quantiser, and checks and measures the result.

    The settings are those that our kernels prefer: QDQ, int8 weights with a scale for each column,
    uint8 activations. The tables show how far results are from those of MODEL, here and in ONNX
    Runtime, and the times of a run. Exit code 1 if results of the quantised model differ from those
    of ONNX Runtime. A file is written only if it is complete.
    """
    if bits is not None and mode == "dynamic":
        raise click.UsageError("--dynamic and --weights exclude each other")
    if settings["data"] is None and mode == "static" and bits is None:
        raise click.UsageError(
            "--static needs samples: give --data a folder or an .npz file, or choose --dynamic or "
            "--weights 4, which need none"
        )
    from ..quantization import quantize as quantize_model
    from ..quantization.quantize_model import accuracy_table, lines, time_table

    with working(f"quantising {model.name}") as step:
        report = quantize_model(
            model,
            output,
            mode=mode if bits is None else "weights",
            bits=int(bits or 4),
            operators=[name for name in (operators or "").split(",") if name] or None,
            progress=step,
            **settings,
        )
    times = [time_table(report)] if report.timings else []
    show(report, as_json, accuracy_table(report), *times, *lines(report))
    return 0 if report.passed else 1
