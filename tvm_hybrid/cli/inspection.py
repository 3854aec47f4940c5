"""Commands that look into a model: `inspect`, `explain`, `profile`, `report` and `scale`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from microkernels.base.errors import TvmHybridError

from .base import options as shared
from .base.console import output_console, show, working
from .base.models import Inputs, array_options, executable_of, input_options, session_of, sized

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from ..executable.executable import Executable
    from ..options import CompileOptions


@shared.model_command("inspect")
@shared.compile_options("shapes", "values")
def inspect(model: Path, options: CompileOptions, as_json: bool) -> int:
    """Shows inputs, outputs, operators and opset of MODEL, and parts that would be refused.

    MODEL is an ONNX file, which is imported but not compiled, or a library that `compile` wrote.
    """
    from ..library.artifact import is_library

    found = _of_library(model) if is_library(model) else _of_onnx(model, options)
    lines = []
    for title, value in ((title, value) for title, value in found.items() if value):
        if isinstance(value, dict):
            value = [f"{count} {name}" for name, count in value.items()]
        several = isinstance(value, list)
        lines += [f"{title}:", *(f"  {each}" for each in value)] if several else []
        lines += [] if several else [f"{title}: {value}"]
    show(found, as_json, *lines)
    return 0


def _of_library(path: Path) -> dict[str, Any]:
    from ..library.artifact import read_manifest

    manifest = read_manifest(path)
    return {
        "library": f"for {manifest.cpu} ({manifest.isa}), threads: {manifest.threads}",
        "inputs": list(map(str, manifest.inputs)),
        "outputs": list(map(str, manifest.outputs)),
        "values": list(map(str, manifest.values)),
        "weights": _weights([each.size for each in manifest.weights]),
        "operators": dict(Counter(each.op for each in manifest.decisions).most_common()),
    }


def _of_onnx(path: Path, options: CompileOptions) -> dict[str, Any]:
    from ..frontend.onnx.reader.load_graph import declared_interface, load_graph
    from ..frontend.onnx.reader.read_model import read_all_but_large

    proto, left = read_all_but_large(path)
    with left:
        graph = load_graph(proto, left)
        interface = declared_interface(proto, graph, options.shapes)
    operators = Counter(map(_operator, _nodes(proto.graph)))
    return {
        "opset": {each.domain or "ai.onnx": each.version for each in proto.opset_import},
        "made by": f"{proto.producer_name} {proto.producer_version}".strip() or "(not said)",
        "inputs": list(map(str, interface.inputs)),
        "outputs": list(map(str, interface.outputs)),
        "weights": _weights(list(map(_bytes, proto.graph.initializer))),
        "operators": dict(operators.most_common()),
        "refused": _refused(path, proto, options) or "nothing",
    }


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _weights(sizes: Sequence[int]) -> str:
    return f"{len(sizes)}, {sum(sizes):,} bytes"


def _bytes(tensor: onnx.TensorProto) -> int:
    from onnx import helper

    return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _refused(path: Path, proto: onnx.ModelProto, options: CompileOptions) -> list[str]:
    """Lists all unknown operators; if there are none, the first error of an import."""
    from ..frontend.onnx.onnx_import import import_onnx
    from ..frontend.onnx.rewrites.table import is_known

    own = {(each.domain, each.name) for each in proto.functions}
    unknown = {
        _operator(node): None
        for node in _nodes(proto.graph)
        if (node.domain, node.op_type) not in own and not is_known(node)
    }
    found = [f"{name}: this operator is not known" for name in unknown]
    if found:
        return found
    with working(f"importing {path.name}"):
        try:
            import_onnx(path, options.shapes, options.values, keep_dynamic=True)
        except TvmHybridError as error:
            found.append(shared.in_options(error))
        if found:
            options = sized(path, options, {})
            try:
                import_onnx(path, options.shapes, options.values)
            except TvmHybridError as error:
                found += [text for text in [shared.in_options(error)] if text not in found]
            else:
                found.append("with static sizes nothing is refused")
    return found


@shared.model_command("explain")
@array_options
@shared.compile_options()
def explain(model: Path, inputs: Inputs, options: CompileOptions, as_json: bool) -> int:
    """Shows the decision for every node of MODEL.

    MODEL is an ONNX file or a library that `compile` wrote.
    """
    options = sized(model, options, inputs.given)
    explanation = executable_of(model, options).explain()
    console = output_console()
    if as_json:
        console.file.write(explanation.to_json() + "\n")
    else:
        explanation.print(console)
    return 0


@shared.model_command("profile")
@input_options
@click.option("--repeat", type=shared.AT_LEAST_ONE, default=10, help="Runs that are timed.")
@click.option(
    "--trace",
    metavar="FILE.json",
    type=shared.OutputFile(".json"),
    help="Write every call of a kernel, for chrome://tracing or ui.perfetto.dev.",
)
@shared.compile_options()
def profile(
    model: Path,
    inputs: Inputs,
    repeat: int,
    trace: Path | None,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Times every kernel of MODEL, an ONNX file or a library that `compile` wrote.

    `report` writes a page with more details.
    """
    options = sized(model, options, inputs.given)
    executable = session_of(model, options, inputs.given).executable
    feeds, _ = inputs.feeds_of(executable)
    names = {info.name for info in executable.inputs}
    with working("measuring"):
        found = executable.profile({name: feeds[name] for name in names}, repeat)
    if trace is not None:
        found.to_chrome_trace(trace)
    facts: Mapping[str, Any] = {
        name: getattr(found, name) for name in ("total_us", "repeat", "runs_us", "rows")
    }
    show(facts, as_json, found.table())
    return 0


@shared.model_command("report")
@click.option(
    "-o",
    "--output",
    metavar="FILE.html",
    type=shared.OutputFile(".html", ".htm"),
    help="The page to write.",
)
@input_options
@click.option("--repeat", type=shared.AT_LEAST_ONE, default=20, help="Runs that are timed.")
@click.option(
    "--beside",
    is_flag=True,
    help="Also run ONNX Runtime, in turns with the program; show its time.",
)
@shared.compile_options()
def report(
    model: Path,
    inputs: Inputs,
    output: Path | None,
    repeat: int,
    beside: bool,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Writes a page that says why MODEL is slow: graph, kernels, roofline, memory, decisions.

    MODEL is an ONNX file or a library that `compile` wrote. The page is one HTML file that loads
    nothing else. The machine and the model are measured for it, so it should be idle. --json prints
    the content of the page, and needs no -o.
    """
    if output is None and not as_json:
        raise click.UsageError("name the page to write, such as -o report.html, or give --json")
    import msgspec

    from ..library.artifact import is_library
    from ..report.page.collect import collect
    from ..report.page.data import write_page

    if beside and is_library(model):
        raise click.UsageError("--beside needs the ONNX file that ONNX Runtime runs, not a library")

    options = sized(model, options, inputs.given)
    executable = executable_of(model, options)
    feeds, _ = inputs.feeds_of(executable)
    with working("measuring"):
        data = collect(executable, feeds, model=str(model), repeat=repeat)
        if beside:
            others = _beside_onnx_runtime(model, executable, feeds)
            data = msgspec.structs.replace(
                data, head=msgspec.structs.replace(data.head, others_us=others)
            )
    if output is not None:
        write_page(data, output)
    lines = [f"{output}: {len(data.regions)} calls of {len(data.kernels)} kernels"]
    lines += [f"{name}: {us:.1f} us" for name, us in data.head.others_us.items()]
    for advice in data.advice:
        share = "" if advice.share is None else f" ({advice.share:.0%} of the time)"
        lines.append(f"{advice.title}{share}: {advice.command or advice.text}")
    show(data, as_json, *lines)
    return 0


def _beside_onnx_runtime(
    model: Path, executable: Executable, feeds: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Median microseconds of a run of ours and of ONNX Runtime, measured in turns."""
    from ..bench.peers.contestants import SessionContestant
    from ..bench.peers.peers import ONNX_RUNTIME, OURS
    from ..report.timing import ContestantError, Timing, interleave
    from ..session.inference_session import InferenceSession

    contestants = {
        OURS: SessionContestant(InferenceSession(executable, progress=False), feeds),
        ONNX_RUNTIME: SessionContestant.of_onnx(model, feeds, executable.num_threads),
    }
    times, failed = interleave(contestants, rounds=5, seconds=0.2)
    for name, why in failed.items():
        raise ContestantError(f"{name}: {why}")
    return {name: Timing.of(found).median_us for name, found in times.items()}


@shared.model_command("scale")
@input_options
@click.option(
    "--measure", is_flag=True, help="Also run it here, on an idle machine, and show both times."
)
@click.option("--rows", type=shared.AT_LEAST_ONE, help="Most regions to show.")
@click.option(
    "--threads",
    "counts",
    metavar="1,2,4",
    type=shared.counts_of("numbers of threads"),
    default="1,2",
    help="Numbers of threads.",
)
@shared.compile_options(*(name for name in shared.ALL if name != "threads"))
def scale(
    model: Path,
    inputs: Inputs,
    measure: bool,
    counts: tuple[int, ...],
    rows: int | None,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Predicts the time of MODEL and of its regions by threads; nothing is run.

    The numbers come from the machine's description: instructions of the kernels as they would be
    built, bytes at each level of the memory, forks, and load balance. For each region the table
    names what limits it on the most threads.
    """
    if measure and options.target is not None:
        raise click.UsageError("--measure is for this machine, and excludes --target")
    if options.keep_dynamic:
        raise click.UsageError("times are predicted for static sizes: give --shape or --dim")
    from ..bench.scale import measured_table, scale_model, scale_table, with_measured

    options = sized(model, options, inputs.given)
    with working(f"predicting {model.name}"):
        report = scale_model(model, counts, options, name=model.name)
    if measure:
        executables = {
            run.threads: executable_of(model, replace(options, num_threads=run.threads))
            for run in report.runs
        }
        feeds, _ = inputs.feeds_of(executables[1])
        with working("measuring"):
            report = with_measured(report, executables, feeds)
    measured = (
        measured_table(run, rows or 0) for run in report.runs if run.measured_us is not None
    )
    slower = (f"slower with twice the threads: {line}" for line in report.slower)
    show(report, as_json, scale_table(report, rows or 0), *measured, *slower)
    return 0
