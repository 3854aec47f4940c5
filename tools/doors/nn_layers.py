"""Layers of the models for tvm.relax.frontend.nn; their parameters have PyTorch's names."""

# mypy: disable-error-code="misc,import-untyped"

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op
from tvm.relax.frontend.nn.core import wrap_nested


class Rows(nn.LayerNorm):
    """A layer norm of the last axis."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__(width, eps=eps)


def root_norm(width: int) -> nn.Module:
    """A root-mean-square norm of the last axis."""
    return nn.RMSNorm(width, -1, 1e-5, bias=False)


class Attention(nn.Module):
    """Attention with a product for each of queries, keys and values."""

    def __init__(
        self,
        width: int,
        heads: int,
        shared: int = 1,
        causal: bool = False,
        bias: bool = True,
        rotary: int = 0,
    ) -> None:
        self.heads, self.shared, self.causal = heads, shared, causal
        self.q, self.o = (nn.Linear(width, width, bias) for _ in range(2))
        self.k, self.v = (nn.Linear(width, width // shared, bias) for _ in range(2))
        self.rotary = rotary
        if rotary:
            self.cos = nn.Parameter((rotary, width // heads))
            self.sin = nn.Parameter((rotary, width // heads))

    def turned(self, x: Any) -> Any:
        """Heads [batch, tokens, heads, size] rotated by their positions."""
        if not self.rotary:
            return x
        x = op.permute_dims(x, [0, 2, 1, 3])
        low, high = op.split(x, 2, axis=-1)
        x = x * self.cos + op.concat([op.negative(high), low], -1) * self.sin
        return op.permute_dims(x, [0, 2, 1, 3])

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        batch, tokens, width = x.shape
        size = width // self.heads
        q, k, v = (
            op.reshape(each(x), (batch, tokens, -1, size)) for each in (self.q, self.k, self.v)
        )
        q, k = self.turned(q), self.turned(k)
        if self.shared > 1:
            k, v = (op.repeat(each, self.shared, 2) for each in (k, v))
        y = op.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(op.reshape(y, (batch, tokens, width)))


class Joined(nn.Module):
    """The computation of torch's nn.MultiheadAttention: one product, and tokens before batches."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.in_proj_weight = nn.Parameter((3 * width, width))
        self.in_proj_bias = nn.Parameter((3 * width,))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        batch, tokens, width = x.shape
        x = op.permute_dims(x, [1, 0, 2])
        y = op.matmul(x, op.permute_dims(self.in_proj_weight)) + self.in_proj_bias
        q, k, v = (
            op.permute_dims(op.reshape(each, (tokens, batch, self.heads, -1)), [1, 0, 2, 3])
            for each in op.split(y, 3, axis=-1)
        )
        y = op.permute_dims(op.scaled_dot_product_attention(q, k, v), [1, 0, 2, 3])
        y = self.out_proj(op.reshape(y, (tokens, batch, width)))
        return op.permute_dims(y, [1, 0, 2])


class Perceptron(nn.Module):
    """Two products with GELU between them."""

    def __init__(self, width: int, approximate: str | None = None) -> None:
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        return self.down(op.gelu(self.up(x), approximate=self.approximate))


class Encoder(nn.Module):
    """The computation of torch's nn.TransformerEncoderLayer."""

    def __init__(self, width: int, heads: int, first: bool) -> None:
        self.self_attn, self.first = Joined(width, heads), first
        self.linear1, self.linear2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = Rows(width), Rows(width)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        if self.first:
            x = x + self.self_attn(self.norm1(x))
            return x + self.linear2(op.gelu(self.linear1(self.norm2(x))))
        x = self.norm1(x + self.self_attn(x))
        return self.norm2(x + self.linear2(op.relu(self.linear1(x))))


class BertLayer(nn.Module):
    """A layer with norms after the residual sums."""

    def __init__(self, width: int, heads: int) -> None:
        self.attention, self.norm = Attention(width, heads), Rows(width, 1e-12)
        self.mlp, self.norm2 = Perceptron(width), Rows(width, 1e-12)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        x = self.norm(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class VitLayer(nn.Module):
    """A layer with norms before attention and perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm, self.attention = Rows(width), Attention(width, heads)
        self.norm2, self.mlp = Rows(width), Perceptron(width)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))


class GptLayer(nn.Module):
    """A layer with one product for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads, self.norm, self.norm2 = heads, Rows(width), Rows(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Perceptron(width, "tanh")

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        batch, tokens, width = x.shape
        q, k, v = (
            op.reshape(each, (batch, tokens, self.heads, -1))
            for each in op.split(self.qkv(self.norm(x)), 3, axis=-1)
        )
        y = op.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(op.reshape(y, (batch, tokens, width)))
        return x + self.mlp(self.norm2(x))


class LlamaLayer(nn.Module):
    """A layer with root-mean-square norms, grouped queries and a gated perceptron."""

    def __init__(self, width: int, heads: int, hidden: int, rotary: int = 0) -> None:
        self.norm, self.norm2 = root_norm(width), root_norm(width)
        self.attention = Attention(width, heads, 2, True, False, rotary)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        x = x + self.attention(self.norm(x))
        y = self.norm2(x)
        return x + self.down(op.silu(self.gate(y)) * self.up(y))


class BatchNorm(nn.Module):
    """A batch norm of channels; tvm.relax.frontend.nn has none."""

    def __init__(self, channels: int) -> None:
        self.weight, self.bias = nn.Parameter((channels,)), nn.Parameter((channels,))
        self.running_mean = nn.Parameter((channels,))
        self.running_var = nn.Parameter((channels,))

    def forward(self, x: Any) -> Any:
        """[batch, channels, height, width]."""
        values = (x, self.weight, self.bias, self.running_mean, self.running_var)
        call = relax.op.nn.batch_norm(*(each._expr for each in values), axis=1, training=False)
        return wrap_nested(call, "batch_norm")[0]


class Normed(nn.Module):
    """A convolution without a bias, and a batch norm."""

    def __init__(self, inner: int, outer: int, size: int, stride: int = 1, groups: int = 1) -> None:
        self.conv = nn.Conv2D(inner, outer, size, stride, size // 2, groups=groups, bias=False)
        self.norm = BatchNorm(outer)

    def forward(self, x: Any) -> Any:
        """[batch, channels, height, width]."""
        return self.norm(self.conv(x))


class Residual(nn.Module):
    """Convolutions with a shortcut, which is a convolution if sizes differ."""

    def __init__(self, inner: int, outer: int, stride: int, narrow: int = 0) -> None:
        if narrow:
            parts = [Normed(inner, narrow, 1), Normed(narrow, narrow, 3, stride)]
            parts.append(Normed(narrow, outer, 1))
        else:
            parts = [Normed(inner, outer, 3, stride), Normed(outer, outer, 3)]
        self.parts = nn.ModuleList(parts)
        same = inner == outer and stride == 1
        self.beside = None if same else Normed(inner, outer, 1, stride)

    def forward(self, x: Any) -> Any:
        """[batch, channels, height, width]."""
        *parts, last = list(self.parts)
        y = x
        for part in parts:
            y = op.relu(part(y))
        return op.relu(last(y) + (x if self.beside is None else self.beside(x)))


class Grow(nn.Module):
    """A transposed convolution that doubles an image; tvm.relax.frontend.nn has none for images."""

    def __init__(self, inner: int, outer: int) -> None:
        self.weight, self.bias = nn.Parameter((inner, outer, 2, 2)), nn.Parameter((outer,))

    def forward(self, x: Any) -> Any:
        """[batch, channels, height, width]."""
        call = relax.op.nn.conv2d_transpose(x._expr, self.weight._expr, strides=(2, 2))
        bias = op.reshape(self.bias, (1, -1, 1, 1))
        return wrap_nested(call, "conv2d_transpose") + bias


def pooled(x: Any, size: int, stride: int, padding: int = 0) -> Any:
    """The maximum of each window."""
    call = relax.op.nn.max_pool2d(x._expr, (size, size), (stride, stride), (padding, padding))
    return wrap_nested(call, "max_pool2d")


def meant(x: Any, keepdims: bool = False) -> Any:
    """The mean of each image [batch, channels, height, width]."""
    return wrap_nested(relax.op.mean(x._expr, [2, 3], keepdims), "mean")
