"""Layers of attention as ONNX models, written the way exporters write them.

Every model takes hidden states "x" [batch, tokens, width]; models with padding also take "mask"
[batch, tokens]. Each layer is attention, a projection and a residual sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.onnx_builder import OnnxBuilder

LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; `groups` query heads share one head of k and v."""

    batch: int = 2
    tokens: int = 21
    heads: int = 4
    head: int = 16
    layers: int = 2
    groups: int = 1

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return self.heads * self.head


class Writer:
    """Writes one model; the random weights have a size that keeps values near 1."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.g = OnnxBuilder()
        self.rng = np.random.default_rng(0)
        self.x = self.g.input("x", (sizes.batch, sizes.tokens, sizes.width))

    def scalar(self, value: float) -> str:
        return self.g.constant(value, np.float32)

    def ints(self, *values: int) -> str:
        return self.g.constant(list(values), np.int64)

    def linear(self, x: str, inner: int, outer: int) -> str:
        weight = self.g.constant(self.rng.normal(0, inner**-0.5, (inner, outer)), np.float32)
        bias = self.g.constant(self.rng.normal(0, 0.1, outer), np.float32)
        return self.g.node("Add", bias, self.g.node("MatMul", x, weight))

    def split(self, x: str, count: int) -> str:
        """[batch, tokens, count * head] -> [batch, tokens, count, head]."""
        s = self.sizes
        return self.g.node("Reshape", x, self.ints(s.batch, s.tokens, count, s.head))

    def transposed(self, x: str, *order: int) -> str:
        return self.g.node("Transpose", x, perm=order)

    def projections(self, x: str) -> tuple[str, str, str]:
        """Returns q, k and v as [batch, heads, tokens, head]."""
        s = self.sizes
        counts = (s.heads, s.heads // s.groups, s.heads // s.groups)
        q, k, v = (
            self.transposed(self.split(self.linear(x, s.width, n * s.head), n), 0, 2, 1, 3)
            for n in counts
        )
        return q, k, v

    def layers(self, attend: Callable[[str], str]) -> onnx.ModelProto:
        """The model; `attend` turns the hidden states into [batch, heads, tokens, head]."""
        s, g, x = self.sizes, self.g, self.x
        for _ in range(s.layers):
            joined = self.transposed(attend(x), 0, 2, 1, 3)
            joined = g.node("Reshape", joined, self.ints(s.batch, s.tokens, s.width))
            x = g.node("Add", self.linear(joined, s.width, s.width), x)
        g.output(x, (s.batch, s.tokens, s.width))
        return onnx.shape_inference.infer_shapes(g.model(), strict_mode=True)

    def padding(self) -> str:
        """Mask [batch, 1, 1, tokens]: a low number for padded keys, 0 for the other keys."""
        s, g = self.sizes, self.g
        present = g.node("Cast", g.input("mask", (s.batch, s.tokens), np.int64), to=1)
        present = g.node("Unsqueeze", present, self.ints(1, 2))
        return g.node("Mul", g.node("Sub", self.scalar(1.0), present), self.scalar(-1e4))


def bert(sizes: Sizes = Sizes()) -> onnx.ModelProto:
    """Scores are divided by sqrt(head), then masked by padding."""
    w = Writer(sizes)
    g, mask = w.g, w.padding()

    def attend(x: str) -> str:
        q, k, v = w.projections(x)
        scores = g.node("MatMul", q, w.transposed(k, 0, 1, 3, 2))
        scores = g.node("Div", scores, w.scalar(sizes.head**0.5))
        return g.node("MatMul", g.node("Softmax", g.node("Add", scores, mask), axis=-1), v)

    return w.layers(attend)


def gpt2(sizes: Sizes = Sizes()) -> onnx.ModelProto:
    """One product for q, k and v, split; a causal condition selects the score or finfo.min."""
    w = Writer(sizes)
    g = w.g
    causal = g.constant(np.tri(sizes.tokens, dtype=bool)[None, None])

    def attend(x: str) -> str:
        parts = g.nodes("Split", 3, w.linear(x, sizes.width, 3 * sizes.width), axis=2)
        q, k, v = (w.split(part, sizes.heads) for part in parts)
        product = g.node("MatMul", w.transposed(q, 0, 2, 1, 3), w.transposed(k, 0, 2, 3, 1))
        scores = g.node("Div", product, w.scalar(sizes.head**0.5))
        scores = g.node("Where", causal, scores, w.scalar(LOWEST))
        return g.node("MatMul", g.node("Softmax", scores, axis=-1), w.transposed(v, 0, 2, 1, 3))

    return w.layers(attend)


def llama(sizes: Sizes = Sizes(groups=2)) -> onnx.ModelProto:
    """Rotary positions, repeated heads of k and v, and an additive causal mask of finfo.min."""
    w, half = Writer(sizes), sizes.head // 2
    g = w.g
    angles = np.outer(np.arange(sizes.tokens), 100.0 ** -(np.arange(half) / half))
    angles = np.concatenate([angles, angles], axis=1)[None, None]
    cosine, sine = (g.constant(function(angles), np.float32) for function in (np.cos, np.sin))
    mask = g.constant(np.triu(np.full((sizes.tokens,) * 2, LOWEST), 1)[None, None], np.float32)

    def rotated(x: str) -> str:
        low, high = (
            g.node("Slice", x, w.ints(a), w.ints(b), w.ints(3), w.ints(1))
            for a, b in ((0, half), (half, sizes.head))
        )
        rotated = g.node("Concat", g.node("Neg", high), low, axis=-1)
        return g.node("Add", g.node("Mul", x, cosine), g.node("Mul", rotated, sine))

    def repeated(x: str) -> str:
        shape = sizes.batch, sizes.heads // sizes.groups, sizes.groups, sizes.tokens, sizes.head
        wide = g.node("Expand", g.node("Unsqueeze", x, w.ints(2)), w.ints(*shape))
        return g.node("Reshape", wide, w.ints(sizes.batch, sizes.heads, *shape[3:]))

    def attend(x: str) -> str:
        q, k, v = w.projections(x)
        keys = w.transposed(repeated(rotated(k)), 0, 1, 3, 2)
        scores = g.node("Mul", g.node("MatMul", rotated(q), keys), w.scalar(sizes.head**-0.5))
        return g.node(
            "MatMul", g.node("Softmax", g.node("Add", scores, mask), axis=-1), repeated(v)
        )

    return w.layers(attend)


def vit(sizes: Sizes = Sizes()) -> onnx.ModelProto:
    """No mask; q and the transposed k are each multiplied by the square root of the scale."""
    w = Writer(sizes)
    g, root = w.g, sizes.head**-0.25

    def attend(x: str) -> str:
        q, k, v = w.projections(x)
        q = g.node("Mul", q, w.scalar(root))
        k = g.node("Mul", w.transposed(k, 0, 1, 3, 2), w.scalar(root))
        return g.node("MatMul", g.node("Softmax", g.node("MatMul", q, k), axis=-1), v)

    return w.layers(attend)


def t5(sizes: Sizes = Sizes()) -> onnx.ModelProto:
    """No scale; a bias for each head and pair of positions, which includes the padding mask."""
    w = Writer(sizes)
    g = w.g
    positions = w.rng.normal(0, 1, (1, sizes.heads, sizes.tokens, sizes.tokens))
    bias = g.node("Add", g.constant(positions, np.float32), w.padding())

    def attend(x: str) -> str:
        q, k, v = w.projections(x)
        scores = g.node("Add", g.node("MatMul", q, w.transposed(k, 0, 1, 3, 2)), bias)
        return g.node("MatMul", g.node("Softmax", scores, axis=-1), v)

    return w.layers(attend)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "vit": vit,
    "t5": t5,
}


def feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Random normal hidden states; the last sentence is a third shorter than the others."""
    rng = np.random.default_rng(seed)
    result: dict[str, NDArray[np.generic]] = {}
    for item in model.graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        if item.name == "mask":
            mask = np.ones(shape, np.int64)
            mask[-1, -(shape[1] // 3) :] = 0
            result["mask"] = mask
        else:
            result[item.name] = rng.standard_normal(shape).astype(np.float32)
    return result
