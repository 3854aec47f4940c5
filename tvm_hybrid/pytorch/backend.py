"""The backend of `torch.compile`: torch finds it as "tvm_hybrid" by an entry point.

    TorchDynamo's graph -> AOTAutograd -> ATen graph -> Relax -> Executable

Whatever cannot go this way runs in eager mode, as a whole graph; a warning says why, once, and
`tvm_hybrid.torch_programs()` lists it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._guards import CompileContext, TracingContext
from torch.export import default_decompositions

from microkernels.base.errors import CompileError, TvmHybridError
from microkernels.base.logs import logger

from ..frontend.aten.decompositions import with_decompositions
from ..frontend.aten.without_onednn import without_onednn
from .fast_paths import fast_paths
from .frozen import can_freeze
from .graph_program import GraphProgram
from .options import TorchOptions, read_options
from .programs import TorchProgram, add_program
from .resizing import keep_resizes
from .suitable import why_not


def tvm_hybrid(
    graph: Any,
    arguments: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of TorchDynamo.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        As TorchDynamo captures it.
    arguments : sequence of torch.Tensor, int or torch.SymInt
        What it is called with; the parameters of the module are among them.
    options : mapping, optional
        See `TorchOptions`.
    mode : str, optional
        Not taken.

    Returns
    -------
    callable
        Takes the arguments, returns the graph's results.

    Raises
    ------
    CompileError, TargetError, RecordError
        If there is no such option, or a value makes no sense.
    TvmHybridError
        If the graph cannot be compiled, and `strict` is set.
    """
    chosen = read_options(options, mode)
    report = add_program(str(CompileContext.current_compile_id() or "?"))
    try:
        reason = why_not(graph, arguments)
        if reason:
            raise CompileError(reason)
        keep_resizes(graph)
        return _lowered(graph, arguments, chosen, report)
    except TvmHybridError as error:
        if chosen.strict:
            raise
        report.executable, report.reason = None, str(error)
        _warn(report.reason)
        return _eager(graph, report)


def _lowered(
    graph: Any, arguments: Sequence[Any], options: TorchOptions, report: TorchProgram
) -> Callable[..., Any]:
    def of_inference(aten: Any, _examples: Sequence[Any]) -> GraphProgram:
        given = [*_attributes(), *arguments]
        count = len(aten.graph.find_nodes(op="placeholder"))
        freezable = _freezable(given) if count == len(given) else ()
        return GraphProgram(aten, given, freezable, options, report)

    backend = aot_autograd(
        fw_compiler=_refuse_training,
        inference_compiler=of_inference,
        decompositions=_decompositions(),
    )
    with without_onednn():
        lowered: Callable[..., Any] = backend(graph, arguments)
    return lowered


def _attributes() -> Sequence[Any]:
    """Tensors that TorchDynamo's graph holds itself; AOTAutograd makes them its first arguments.

    With `torch._inductor.config.freezing` all parameters and buffers are there.
    """
    context = TracingContext.try_get()
    return () if context is None else context.params_flat or ()


def _freezable(arguments: Sequence[Any]) -> Collection[int]:
    """The arguments that are parameters and buffers of modules, and that the graph leaves alone."""
    context = TracingContext.try_get()
    known = None if context is None else context.fw_metadata
    if known is None:
        return ()
    return [
        number
        for number in known.static_input_indices
        if type(arguments[number]) in (torch.Tensor, torch.nn.Parameter)
        and can_freeze(arguments[number])
        and not known.input_info[number].mutates_data
    ]


def _refuse_training(_graph: Any, _examples: Sequence[Any]) -> Any:
    raise CompileError("its results need gradients; only inference is compiled")


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions into core ATen operators: torch's, and ours."""
    table = default_decompositions().materialize()
    return with_decompositions(table) | fast_paths()


def _eager(graph: Any, report: TorchProgram) -> Callable[..., Any]:
    """The graph as it is; it keeps the report."""

    def run(*arguments: Any) -> Any:
        return graph.forward(*arguments)

    vars(run)["report"] = report
    return run


@functools.cache
def _warn(reason: str) -> None:
    text = f"a graph of torch.compile runs in eager mode: {reason}"
    logger.warning(text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)  # the logger is silent unless asked
