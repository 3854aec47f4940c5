"""Commands that look into a model or library: `inspect`, `explain`, `profile`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from microkernels.base.errors import TvmHybridError

from .base import options as shared
from .base.console import output_console, show, working
from .base.models import Inputs, array_options, executable_of, input_options, session_of, sized

if TYPE_CHECKING:
    import onnx

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
