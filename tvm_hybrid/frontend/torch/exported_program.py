"""A program of `torch.export` as a Relax module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import default_decompositions
from torch.export.graph_signature import InputKind, OutputKind
from tvm import IRModule

from microkernels.base.errors import ModelError, TvmHybridError

from .decompositions import with_decompositions
from .importer import import_graph
from .recurrent import with_whole_layers


def import_program(program: Any) -> IRModule:
    """The module of an exported program; its parameters are constants.

    Parameters
    ----------
    program : torch.export.ExportedProgram

    Raises
    ------
    UnsupportedOperatorError
        Naming an operator that cannot be imported.
    ModelError
        If it changes its inputs or buffers, has inputs that are no tensors, or torch fails.
    """
    try:
        return import_core(decomposed(program))
    except TvmHybridError:
        raise
    except Exception as error:
        raise ModelError(f"this ExportedProgram cannot be imported: {error}") from error


def decomposed(program: Any) -> Any:
    """An exported program in the operators that are imported."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    known = {placeholders[position] for position in _constants(program)}
    with without_onednn():
        table = with_decompositions(default_decompositions())
        return program.run_decompositions(with_whole_layers(table, program.graph_module, known))


def import_core(program: Any) -> IRModule:
    """The module of a program that `decomposed` returned; raises what `import_program` does."""
    return import_graph(program.graph_module, _constants(program), _outputs(program)).mod


def _constants(program: Any) -> dict[int, Any]:
    """The values of inputs of the graph that callers do not give, by their positions."""
    found: dict[int, Any] = {}
    for position, spec in enumerate(program.graph_signature.input_specs):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            named = program.state_dict if spec.target in program.state_dict else program.constants
            found[position] = named[spec.target]
        elif spec.kind is not InputKind.USER_INPUT:
            raise ModelError(f"input {spec.arg.name!r} of the program is a {spec.kind.name}")
    return found


def _outputs(program: Any) -> list[Any]:
    """The nodes that the program returns."""
    found = []
    nodes = next(node for node in program.graph.nodes if node.op == "output").args[0]
    for number, (spec, node) in enumerate(
        zip(program.graph_signature.output_specs, nodes, strict=True)
    ):
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
            raise ModelError(
                f"the program changes {spec.target!r} in place, which a compiled model cannot; "
                "return the new value instead"
            )
        if not isinstance(getattr(node, "meta", {}).get("val"), torch.Tensor):
            raise ModelError(f"output {number} of the program is no tensor but {node}")
        found.append(node)
    if not found:
        raise ModelError("the program returns no tensor")
    return found


@contextmanager
def without_onednn() -> Iterator[None]:
    """torch does not decompose operators into oneDNN's meanwhile, in any thread."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before
