"""Encoders of text: BERT, MiniLM, a QDQ form."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from .graph import Form, Graph, Model, Part


def heads_of(graph: Graph, x: str, heads: int, width: int, like: str = "") -> str:
    """[batch, rows, heads * width] -> [batch, heads, rows, width]."""
    split = graph.reshape(x, *_sizes(graph, like or x), heads, width)
    return graph.transpose(split, 0, 2, 1, 3)


def joined(graph: Graph, x: str, width: int) -> str:
    """[batch, heads, rows, width / heads] -> [batch, rows, width]."""
    y = graph.transpose(x, 0, 2, 1, 3)
    return graph.reshape(y, *_sizes(graph, y), width)


def mixed(graph: Graph, q: str, k: str, v: str, scale: float, mask: str = "") -> str:
    """softmax(q k^T * scale + mask) v of heads."""
    scores = graph.node("MatMul", q, graph.transpose(k, 0, 1, 3, 2))
    if scale != 1:
        scores = graph.node("Mul", scores, graph.constant(scale))
    if mask:
        scores = graph.node("Add", scores, mask)
    return graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)


def attention(
    graph: Graph, x: str, width: int, heads: int, others: str = "", mask: str = ""
) -> str:
    """Attention of rows to themselves or to other rows, with projections."""
    others = others or x
    size = width // heads
    q, k, v = (
        heads_of(graph, graph.linear(each, width, width), heads, size)
        for each in (x, others, others)
    )
    return graph.linear(joined(graph, mixed(graph, q, k, v, size**-0.5, mask), width), width, width)


def mlp(graph: Graph, x: str, width: int, inner: int, activation: str) -> str:
    """Two products with an activation between them."""
    y = graph.activate(graph.linear(x, width, inner), activation)
    return graph.linear(y, inner, width)


def _sizes(graph: Graph, x: str) -> list[Part]:
    """Batch and rows of a value, for a shape."""
    if graph.form.dynamic:
        return [graph.dim(x, 0), graph.dim(x, 1)]
    return [0, 0]


class Sizes(NamedTuple):
    """Sizes of an encoder."""

    layers: int
    width: int
    heads: int
    words: int = 30522
    tokens: int = 128


BERT_BASE, MINILM = Sizes(12, 768, 12), Sizes(6, 384, 12)


class _Encoder(Graph):
    """An encoder; if `quantized`, activations and weights of products pass through 8 bits."""

    def __init__(self, form: Form, quantized: bool) -> None:
        super().__init__(form)
        self.quantized = quantized

    def through(self, x: str, step: float = 1 / 32) -> str:
        """The value, quantised to 8 bits and dequantised."""
        if not self.quantized:
            return x
        form = self.constant(step), self.constant(128, np.uint8)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *form), *form)

    def linear(self, x: str, inner: int, outer: int, bias: bool = True) -> str:
        if not self.quantized:
            return super().linear(x, inner, outer, bias)
        weight = self.rng.standard_normal((inner, outer), np.float32)
        step = np.abs(weight).max(0) / 127
        form = [self.constant(np.rint(weight / step), np.int8)]
        form += [self.constant(step * inner**-0.5), self.constant(np.zeros(outer), np.int8)]
        y = self.node("MatMul", self.through(x), self.node("DequantizeLinear", *form, axis=1))
        return self.node("Add", self.random(outer, spread=0.1), y)


def encoder(form: Form, sizes: Sizes, quantized: bool = False) -> Model:
    """ids and mask [batch, tokens] -> states, or scores of classes if there is another head."""
    g, width = _Encoder(form, quantized), sizes.width
    batch, tokens = g.batch(), g.size("tokens", sizes.tokens)
    ids, mask, types = (
        g.input(name, (batch, tokens), np.int64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    table = g.random(512, width, spread=0.1)
    if form.dynamic:
        ends = g.ints(0), g.dim(ids, 1), g.ints(0)
        places = g.node("Slice", table, *ends)
    else:
        places = g.slice(table, 0, 0, sizes.tokens)
    words = g.node("Gather", g.random(sizes.words, width), ids)
    kinds = g.node("Gather", g.random(2, width, spread=0.1), types)
    x = g.layer_norm(g.node("Add", g.node("Add", words, kinds), places), width)
    present = g.node("Unsqueeze", g.node("Unsqueeze", mask, g.ints(1)), g.ints(2))
    absent = g.node("Sub", g.constant(1.0), g.node("Cast", present, to=1))
    hidden = g.node("Mul", absent, g.constant(float(np.finfo(np.float32).min)))
    size = width // sizes.heads
    for _ in range(sizes.layers):
        q, k, v = (heads_of(g, g.linear(x, width, width), sizes.heads, size) for _ in range(3))
        q, k, v = (g.through(each) for each in (q, k, v))
        y = joined(g, mixed(g, q, k, v, size**-0.5, hidden), width)
        x = g.layer_norm(g.node("Add", g.linear(y, width, width), x), width)
        y = g.gelu(g.linear(x, width, 4 * width))
        x = g.layer_norm(g.node("Add", g.linear(y, 4 * width, width), x), width)
    if form.head:
        first = g.node(
            "Tanh", g.linear(g.node("Squeeze", g.slice(x, 1, 0, 1), g.ints(1)), width, width)
        )
        x = g.linear(first, width, form.head)
    g.output(x, "states")
    return g.model()


bert_base = functools.partial(encoder, sizes=BERT_BASE)
minilm = functools.partial(encoder, sizes=MINILM)
bert_base_qdq = functools.partial(encoder, sizes=BERT_BASE, quantized=True)
minilm_qdq = functools.partial(encoder, sizes=MINILM, quantized=True)
