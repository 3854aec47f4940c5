"""Small transformers as ONNX models, written the way exporters write them: BERT and Llama.

The weights are random with a fixed seed, of a size that keeps activations near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.onnx_builder import OnnxBuilder

# Mask values that are added to scores. Exporters write -10000 or less, which leaves no precision
# for the scores if the quantiser makes their sum 8-bit.
ABSENT = -20.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of a transformer.

    Attributes
    ----------
    batch, tokens, width, heads, inner, layers, words : int
        `inner` is the width of the feed-forward layer, `words` that of the vocabulary.
    """

    batch: int = 2
    tokens: int = 24
    width: int = 64
    heads: int = 4
    inner: int = 160
    layers: int = 2
    words: int = 100

    @property
    def head(self) -> int:
        """Size of one head."""
        return self.width // self.heads

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the hidden states."""
        return self.batch, self.tokens, self.width


class _Writer:
    """Methods that both kinds of model share."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.sizes = sizes
        self.g = OnnxBuilder()
        self.rng = np.random.default_rng(seed)

    def random(self, *shape: int, spread: float = 1.0, around: float = 0.0) -> str:
        values = self.rng.normal(around, spread, shape)
        return self.g.constant(values, np.float32)

    def scalar(self, value: float) -> str:
        return self.g.constant(value, np.float32)

    def ints(self, values: Sequence[int]) -> str:
        return self.g.constant(list(values), np.int64)

    def embeddings(self) -> str:
        s = self.sizes
        ids = self.g.input("ids", (s.batch, s.tokens), np.int64)
        return self.g.node("Gather", self.random(s.words, s.width), ids)

    def linear(self, x: str, inner: int, outer: int, bias: bool = True) -> str:
        y = self.g.node("MatMul", x, self.random(inner, outer, spread=inner**-0.5))
        return self.g.node("Add", self.random(outer, spread=0.1), y) if bias else y

    def heads(self, x: str, transposed: bool = False) -> str:
        """[batch, tokens, width] -> [batch, heads, tokens, head], or its last two swapped."""
        s = self.sizes
        split = self.g.node("Reshape", x, self.ints((s.batch, s.tokens, s.heads, s.head)))
        return self.g.node("Transpose", split, perm=(0, 2, 3, 1) if transposed else (0, 2, 1, 3))

    def attention(self, q: str, k: str, v: str, mask: str) -> str:
        """softmax(q k / sqrt(head) + mask) v, heads joined; k comes transposed."""
        s, g = self.sizes, self.g
        scores = g.node("Div", g.node("MatMul", q, k), self.scalar(s.head**0.5))
        weights = g.node("Softmax", g.node("Add", scores, mask), axis=-1)
        joined = g.node("Transpose", g.node("MatMul", weights, v), perm=(0, 2, 1, 3))
        return g.node("Reshape", joined, self.ints(s.shape))

    def finish(self, x: str) -> onnx.ModelProto:
        self.g.output(x, self.sizes.shape)
        return onnx.shape_inference.infer_shapes(self.g.model(), strict_mode=True)


def bert(sizes: Sizes | None = None, seed: int = 0) -> onnx.ModelProto:
    """ids -> hidden states; layer normalisation after each half, GELU by Erf, a padding mask.

    Products with constant weights: 6 a layer; of two activations: 2 a layer.
    """
    s = sizes or Sizes()
    w = _Writer(s, seed)
    g = w.g

    def norm(x: str) -> str:
        scale, shift = w.random(s.width, spread=0.1, around=1), w.random(s.width, spread=0.1)
        return g.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-12)

    present = g.node("Cast", g.input("mask", (s.batch, s.tokens), np.int64), to=1)
    absent = g.node("Sub", w.scalar(1.0), g.node("Unsqueeze", present, w.ints((1, 2))))
    mask = g.node("Mul", absent, w.scalar(ABSENT))
    x = norm(g.node("Add", w.embeddings(), w.random(s.tokens, s.width)))
    for _ in range(s.layers):
        q, k, v = (w.linear(x, s.width, s.width) for _ in range(3))
        mixed = w.attention(w.heads(q), w.heads(k, transposed=True), w.heads(v), mask)
        x = norm(g.node("Add", w.linear(mixed, s.width, s.width), x))
        y = w.linear(x, s.width, s.inner)
        erf = g.node("Erf", g.node("Div", y, w.scalar(2**0.5)))
        gelu = g.node("Mul", y, g.node("Add", erf, w.scalar(1.0)))
        y = w.linear(g.node("Mul", gelu, w.scalar(0.5)), s.inner, s.width)
        x = norm(g.node("Add", y, x))
    return w.finish(x)


def llama(sizes: Sizes | None = None, seed: int = 0) -> onnx.ModelProto:
    """ids -> hidden states; RMS normalisation, rotary positions, causal mask, SiLU gate.

    Products with constant weights: 7 a layer; of two activations: 2 a layer.
    """
    s = sizes or Sizes()
    w = _Writer(s, seed)
    g = w.g

    def norm(x: str) -> str:
        square = g.node("Pow", x, w.scalar(2.0))
        mean = g.node("ReduceMean", square, axes=(-1,), keepdims=1)
        root = g.node("Sqrt", g.node("Add", mean, w.scalar(1e-5)))
        scaled = g.node("Mul", x, g.node("Reciprocal", root))
        return g.node("Mul", w.random(s.width, spread=0.1, around=1), scaled)

    angles = np.outer(np.arange(s.tokens), 100.0 ** -(np.arange(s.head // 2) * 2 / s.head))
    angles = np.concatenate([angles, angles], axis=1)
    cosine, sine = (g.constant(function(angles), np.float32) for function in (np.cos, np.sin))

    def part(x: str, start: int, end: int) -> str:
        return g.node("Slice", x, w.ints([start]), w.ints([end]), w.ints([3]), w.ints([1]))

    def rotate(x: str) -> str:
        half = s.head // 2
        rotated = g.node("Concat", g.node("Neg", part(x, half, s.head)), part(x, 0, half), axis=-1)
        return g.node("Add", g.node("Mul", x, cosine), g.node("Mul", rotated, sine))

    mask = g.constant(np.triu(np.full((s.tokens, s.tokens), ABSENT), 1), np.float32)
    x = w.embeddings()
    for _ in range(s.layers):
        y = norm(x)
        q, k, v = (w.heads(w.linear(y, s.width, s.width, bias=False)) for _ in range(3))
        keys = g.node("Transpose", rotate(k), perm=(0, 1, 3, 2))
        mixed = w.attention(rotate(q), keys, v, mask)
        x = g.node("Add", x, w.linear(mixed, s.width, s.width, bias=False))
        y = norm(x)
        gate = w.linear(y, s.width, s.inner, bias=False)
        gate = g.node("Mul", gate, g.node("Sigmoid", gate))
        y = g.node("Mul", gate, w.linear(y, s.width, s.inner, bias=False))
        x = g.node("Add", x, w.linear(y, s.inner, s.width, bias=False))
    return w.finish(norm(x))


def feeds(model: onnx.ModelProto, seed: int) -> dict[str, NDArray[np.int64]]:
    """Random words; if there is a mask, the last sentence is a third shorter."""
    rng = np.random.default_rng(seed)
    result = {}
    for item in model.graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        if item.name == "mask":
            result["mask"] = np.ones(shape, np.int64)
            result["mask"][-1, -(shape[1] // 3) :] = 0
        else:
            result[item.name] = rng.integers(0, Sizes().words, shape)
    return result
