"""PyTorch's fused operators of transformers in terms of plain ones, for which it has no table.

In evaluation `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call them where they can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

_SOURCE, _PADDING = 0, 1  # kinds of masks: of queries and keys, of keys; 2: of everything


def fast_paths() -> dict[Any, Callable[..., Any]]:
    """Decompositions by operators."""
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
