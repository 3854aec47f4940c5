"""The backend of `torch.compile`: torch finds it as "tvm_hybrid" by an entry point.

    TorchDynamo's graph -> AOTAutograd -> ATen graph -> Relax -> Executable

A graph that cannot go this way runs in eager mode as a whole. A warning says why, once for each
reason, and `tvm_hybrid.torch_programs()` lists the graph.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._guards import CompileContext, TracingContext
from torch.export import default_decompositions

from microkernels.base.errors import CompileError, TvmHybridError
from microkernels.base.logs import logger

from ..frontend.torch.decompositions import with_decompositions
from ..frontend.torch.images import METHODS, is_exact
from ..frontend.torch.importer import without_onednn
from .graph_program import CompiledGraph, read_options, refuse
from .programs import add_program


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
        The arguments of the first call; the parameters of the module are among them.
    options : mapping, optional
        See `TorchOptions`.
    mode : str, optional
        Not supported; refused if given.

    Returns
    -------
    callable
        Takes the arguments, returns the graph's results.

    Raises
    ------
    CompileError, TargetError, RecordError
        If an option does not exist, or its value makes no sense.
    TvmHybridError
        If the graph cannot be compiled, and `strict` is set.
    """
    chosen = read_options(options, mode)
    report = add_program(str(CompileContext.current_compile_id() or "?"))

    def of_inference(aten: Any, _examples: Sequence[Any]) -> CompiledGraph:
        context = TracingContext.try_get()
        # Tensors that TorchDynamo's graph holds itself are AOTAutograd's first arguments. With
        # `torch._inductor.config.freezing` all parameters and buffers are there.
        given = [*((context and context.params_flat) or ()), *arguments]
        known = context and context.fw_metadata
        freezable: list[int] = []
        updated: list[int] = []
        if known and len(aten.graph.find_nodes(op="placeholder")) == len(given):
            updated = known.mutated_inp_runtime_indices
            # Parameters and buffers of modules that the graph does not change.
            freezable = [
                number
                for number in known.static_input_indices
                if type(given[number]) in (torch.Tensor, torch.nn.Parameter)
                # A tensor made in inference mode has no version, so a change would go unnoticed.
                and not given[number].is_inference()
                and not known.input_info[number].mutates_data
            ]
        return CompiledGraph(aten, given, freezable, chosen, report, updated)

    def refuse_training(aten: Any, _examples: Sequence[Any]) -> Any:
        raise CompileError("its results need gradients; only inference is compiled")

    try:
        refuse(graph, arguments)
        keep_resizes(graph)
        backend = aot_autograd(
            fw_compiler=refuse_training,
            inference_compiler=of_inference,
            decompositions=_decompositions(),
        )
        with without_onednn():
            lowered: Callable[..., Any] = backend(graph, arguments)
        return lowered
    except TvmHybridError as error:
        if chosen.strict:
            raise
        report.executable, report.reason = None, str(error)
        _warn(report.reason)

    def run(*arguments: Any) -> Any:
        return graph.forward(*arguments)

    vars(run)["report"] = report  # keeps the report alive: torch_programs holds it weakly
    return run


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions into core ATen operators: torch's and ours."""
    aten = torch.ops.aten
    return with_decompositions(default_decompositions().materialize()) | {
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        aten._native_multi_head_attention.default: _multi_head_attention,
    }


@functools.cache
def _warn(reason: str) -> None:
    text = f"a graph of torch.compile runs in eager mode: {reason}"
    logger.warning(text)
    warnings.warn(text, RuntimeWarning, stacklevel=2)  # the logger is silent unless asked


# PyTorch's fused operators of transformers in terms of plain operators: it has no rule for them.
# `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call them in evaluation mode.


_SOURCE, _PADDING = 0, 1  # kinds of masks: queries by keys; keys of each item; 2: four dimensions


def _multi_head_attention(
    query: Any, key: Any, value: Any, size: int, heads: int, *given: Any
) -> tuple[Any, Any]:
    """Decomposes `_native_multi_head_attention`."""
    missing = (None, True, True, None)[len(given) - 4 :]
    qkv_weight, qkv_bias, weight, bias, mask, need_weights, average, mask_type = given + missing
    if query is key and key is value:
        parts = list(F.linear(query, qkv_weight, qkv_bias).chunk(3, -1))
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        given = (query, key, value)
        parts = [F.linear(*each) for each in zip(given, weights, biases, strict=True)]
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in parts)
    taken = mask
    if mask is not None:  # with dimensions for items, heads, queries and keys
        mask = mask[None, None] if mask_type == _SOURCE else mask
        mask = mask[:, None, None] if mask_type == _PADDING else mask
        taken = mask.to(torch.bool).logical_not()  # torch's mask is true where a key is left out
    weights = query.new_empty(0)
    if need_weights:
        scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5)
        if taken is not None:
            scores = scores.masked_fill(~taken, -torch.inf)
        weights = scores.softmax(-1)
        mixed = weights @ v
        weights = weights.mean(1) if average else weights
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=taken)
    return F.linear(mixed.transpose(1, 2).flatten(2), weight, bias), weights


def _encoder_layer(source: Any, size: int, heads: int, *given: Any) -> Any:
    """Decomposes `_transformer_encoder_layer_fwd`."""
    # `given`: weights and biases of attention's two products, `use_gelu`, `norm_first`, `eps`,
    # weights and biases of two norms and two products, mask, kind of mask.
    use_gelu, norm_first, eps = given[4:7]
    mask, mask_type = (*given[15:], None, None)[:2]

    def attention(x: Any) -> Any:
        how = (*given[:4], mask, False, True, mask_type)
        return _multi_head_attention(x, x, x, size, heads, *how)[0]

    def perceptron(x: Any) -> Any:
        hidden = F.linear(x, *given[11:13])
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), *given[13:15])

    def norm(x: Any, first: int) -> Any:
        return F.layer_norm(x, (size,), *given[first : first + 2], eps)

    if norm_first:
        x = source + attention(norm(source, 7))
        return x + perceptron(norm(x, 9))
    x = norm(source + attention(source), 7)
    return norm(x + perceptron(x), 9)


# Keeps image resizing as one operator, which torch would decompose into gathers.
#
# F.interpolate(x, scale_factor=2)  ->  torch.ops.tvm_hybrid.resize2d(x, height, width, ...)


@torch.library.custom_op("tvm_hybrid::resize2d", mutates_args=())  # type: ignore[untyped-decorator]
def resize2d(
    x: torch.Tensor, height: int, width: int, mode: str, align_corners: bool
) -> torch.Tensor:
    """Resizes images as `F.interpolate` does."""
    corners = None if mode == "nearest" else align_corners
    return F.interpolate(x, (height, width), mode=mode, align_corners=corners)


@resize2d.register_fake  # type: ignore[untyped-decorator]
def _shape(x: Any, height: int, width: int, mode: str, align_corners: bool) -> Any:
    kept = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else None
    result = x.new_empty((*x.shape[:2], height, width))
    return result if kept is None else result.to(memory_format=kept)


def keep_resizes(graph: Any) -> None:
    """Replaces `F.interpolate` in a graph of TorchDynamo by `resize2d`; eager mode can run both.

    A call stays if the image size is dynamic or does not determine where pixels lie.
    """
    changed = False
    for node in graph.graph.find_nodes(op="call_function", target=F.interpolate):
        bound = inspect.signature(F.interpolate).bind(*node.args, **node.kwargs)
        bound.apply_defaults()
        given = bound.arguments
        x, mode, corners = given["input"], given["mode"], bool(given["align_corners"])
        before, after = x.meta["example_value"].shape, node.meta["example_value"].shape
        factors = given["scale_factor"]
        if corners or given["recompute_scale_factor"]:
            factors = None
        elif not isinstance(factors, (tuple, list, type(None))):
            factors = (factors, factors)
        is_known = len(before) == 4 and mode in METHODS and not given["antialias"]
        if not is_known or not is_exact((*before[2:], *after[2:]), factors):
            continue
        changed = True
        with graph.graph.inserting_before(node):
            target = torch.ops.tvm_hybrid.resize2d.default
            resized = graph.graph.call_function(target, (x, *after[2:], mode, corners))
        resized.meta.update(node.meta)
        node.replace_all_uses_with(resized)
        graph.graph.erase_node(node)
    if changed:
        graph.recompile()
