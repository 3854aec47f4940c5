"""Layers of the models in PyTorch, in the way that its users write them."""

# mypy: disable-error-code="misc,name-defined"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Attention with a product for each of queries, keys and values.

    Each head of keys and values serves `shared` heads of queries. With `rotary` (a number of
    tokens), queries and keys are rotated by their positions.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        shared: int = 1,
        causal: bool = False,
        bias: bool = True,
        rotary: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.shared, self.causal = heads, shared, causal
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, width // shared, bias=bias)
        self.v = nn.Linear(width, width // shared, bias=bias)
        self.o = nn.Linear(width, width, bias=bias)
        self.rotary = rotary
        if rotary:
            size = width // heads
            rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
            angles = torch.outer(torch.arange(rotary).float(), rates).repeat(1, 2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

    def turned(self, x: Any) -> Any:
        """Heads rotated by their positions."""
        if not self.rotary:
            return x
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-high, low), dim=-1) * self.sin

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        batch, tokens, width = x.shape
        q, k, v = (
            each(x).view(batch, tokens, heads, -1).transpose(1, 2)
            for each, heads in (
                (self.q, self.heads),
                (self.k, self.heads // self.shared),
                (self.v, self.heads // self.shared),
            )
        )
        q, k = self.turned(q), self.turned(k)
        if self.shared > 1:
            k, v = (each.repeat_interleave(self.shared, 1) for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, width))


class Perceptron(nn.Module):
    """Two products with GELU between them."""

    def __init__(self, width: int, approximate: str = "none") -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class BertLayer(nn.Module):
    """A layer with norms after the residual sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm = Attention(width, heads), nn.LayerNorm(width, eps=1e-12)
        self.mlp, self.norm2 = Perceptron(width), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        x = self.norm(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class VitLayer(nn.Module):
    """A layer with norms before attention and perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), Perceptron(width)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))


class GptLayer(nn.Module):
    """A layer with one product for queries, keys and values; `by_hand` writes out the attention."""

    def __init__(self, width: int, heads: int, by_hand: bool = False) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = Perceptron(width, "tanh")

    def attended(self, q: Any, k: Any, v: Any) -> Any:
        """Causal attention: each token sees itself and the tokens before it."""
        if not self.by_hand:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        tokens, size = q.shape[-2:]
        scores = q @ k.transpose(-2, -1) * size**-0.5
        hidden = torch.tril(torch.ones(tokens, tokens)) == 0
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        batch, tokens, width = x.shape
        q, k, v = (
            each.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for each in self.qkv(self.norm(x)).split(width, dim=2)
        )
        y = self.attended(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.o(y)
        return x + self.mlp(self.norm2(x))


class LlamaLayer(nn.Module):
    """A layer with root-mean-square norms, grouped queries and a gated perceptron."""

    def __init__(self, width: int, heads: int, hidden: int, rotary: int = 0) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, 2, True, False, rotary)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, width]."""
        x = x + self.attention(self.norm(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Normed(nn.Module):
    """A convolution without a bias, and a batch norm."""

    def __init__(self, inner: int, outer: int, size: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outer)

    def forward(self, x: Any) -> Any:
        """[batch, channels, height, width]."""
        return self.norm(self.conv(x))


class Residual(nn.Module):
    """Convolutions with a shortcut, which is a convolution if sizes differ."""

    def __init__(self, inner: int, outer: int, stride: int, narrow: int = 0) -> None:
        super().__init__()
        if narrow:  # 1x1, 3x3, 1x1
            parts = [Normed(inner, narrow, 1), Normed(narrow, narrow, 3, stride)]
            parts.append(Normed(narrow, outer, 1))
        else:
            parts = [Normed(inner, outer, 3, stride), Normed(outer, outer, 3)]
        self.parts = nn.ModuleList(parts)
        same = inner == outer and stride == 1
        self.beside = None if same else Normed(inner, outer, 1, stride)

    def forward(self, x: Any) -> Any:
        """[batch, channels, height, width]."""
        y = x
        for part in self.parts[:-1]:
            y = F.relu(part(y))
        return F.relu(self.parts[-1](y) + (x if self.beside is None else self.beside(x)))
