"""The backend of `torch.compile`: torch finds it as "tvm_hybrid" by an entry point.

    TorchDynamo's graph -> AOTAutograd -> ATen graph -> Relax -> Executable

Whatever cannot go this way runs in eager mode, as a whole graph; a warning says why, once, and
`tvm_hybrid.torch_programs()` lists it.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._guards import CompileContext, TracingContext
from torch.export import default_decompositions

from microkernels.base.errors import CompileError, TvmHybridError
from microkernels.base.logs import logger

from ..frontend.torch.decompositions import with_decompositions
from ..frontend.torch.exported_program import without_onednn
from ..frontend.torch.images import METHODS, is_exact
from .graph_program import GraphProgram, can_freeze, why_not
from .options import TorchOptions, read_options
from .programs import TorchProgram, add_program


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


_SOURCE, _PADDING = 0, 1  # kinds of masks: of queries and keys, of keys; 2: of everything


def fast_paths() -> dict[Any, Callable[..., Any]]:
    """PyTorch's fused operators of transformers in terms of plain ones, for which it has no table.

    In evaluation `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call them where they can.

    Decompositions by operators.
    """
    aten = torch.ops.aten
    return {
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        aten._native_multi_head_attention.default: _multi_head_attention,
    }


def _multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    if query is key and key is value:
        parts = list(F.linear(query, qkv_weight, qkv_bias).chunk(3, -1))
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        given = (query, key, value)
        parts = [F.linear(*each) for each in zip(given, weights, biases, strict=True)]
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in parts)
    taken = None if mask is None else _broadcast(mask.to(torch.bool), mask_type).logical_not()
    weights = query.new_empty(0)
    if need_weights:
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5)
        if taken is not None:
            scores = scores.masked_fill(~taken, -torch.inf)
        weights = scores.softmax(-1)
        mixed = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=taken)
    return F.linear(mixed.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


def _broadcast(mask: Any, kind: int | None) -> Any:
    """A mask that says what is left out, with dimensions for items, heads, queries and keys."""
    if kind == _SOURCE:
        return mask[None, None]
    return mask[:, None, None] if kind == _PADDING else mask


def _encoder_layer(
    source: Any,
    embed_dim: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    def attention(x: Any) -> Any:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        shape = embed_dim, heads
        return _multi_head_attention(
            x, x, x, *shape, *projections, mask, need_weights=False, mask_type=mask_type
        )[0]

    def perceptron(x: Any) -> Any:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = F.gelu(hidden) if use_gelu else F.relu(hidden)
        return F.linear(hidden, ffn_weight_2, ffn_bias_2)

    def norm_1(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = source + attention(norm_1(source))
        return x + perceptron(norm_2(x))
    x = norm_1(source + attention(source))
    return norm_2(x + perceptron(x))


# Keeps the resizing of images whole, which torch would take apart into gathers.
#
# F.interpolate(x, scale_factor=2)  ->  torch.ops.tvm_hybrid.resize2d(x, height, width, ...)


@torch.library.custom_op("tvm_hybrid::resize2d", mutates_args=())  # type: ignore[untyped-decorator]
def resize2d(
    x: torch.Tensor, height: int, width: int, mode: str, align_corners: bool
) -> torch.Tensor:
    """Images of another size, as `F.interpolate` makes them."""
    corners = None if mode == "nearest" else align_corners
    return F.interpolate(x, (height, width), mode=mode, align_corners=corners)


@resize2d.register_fake  # type: ignore[untyped-decorator]
def _shape(x: Any, height: int, width: int, mode: str, align_corners: bool) -> Any:
    kept = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else None
    result = x.new_empty((*x.shape[:2], height, width))
    return result if kept is None else result.to(memory_format=kept)


def keep_resizes(graph: Any) -> None:
    """Replaces calls in a graph of TorchDynamo, which may still run in eager mode.

    Sizes have to be known, and to say where pixels lie.
    """
    changed = False
    for node in graph.graph.find_nodes(op="call_function", target=F.interpolate):
        arguments = _arguments(node)
        if arguments is None:
            continue
        changed = True
        with graph.graph.inserting_before(node):
            target = torch.ops.tvm_hybrid.resize2d.default
            resized = graph.graph.call_function(target, arguments)
        resized.meta.update(node.meta)
        node.replace_all_uses_with(resized)
        graph.graph.erase_node(node)
    if changed:
        graph.recompile()


def _arguments(node: Any) -> tuple[Any, ...] | None:
    given = inspect.signature(F.interpolate).bind(*node.args, **node.kwargs)
    given.apply_defaults()
    x, mode = given.arguments["input"], given.arguments["mode"]
    before, after = x.meta["example_value"].shape, node.meta["example_value"].shape
    if len(before) != 4 or mode not in METHODS or given.arguments["antialias"]:
        return None
    factors = given.arguments["scale_factor"]
    if given.arguments["recompute_scale_factor"] or factors is None:
        factors = None
    elif not isinstance(factors, (tuple, list)):
        factors = (factors, factors)
    corners = bool(given.arguments["align_corners"])
    if not is_exact((*before[2:], *after[2:]), None if corners else factors):
        return None
    return x, *after[2:], mode, corners
