"""Layers of transformers, as exporters write them."""

from __future__ import annotations

from .graph import Graph, Part


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
    """Of rows to themselves, or to others; with projections."""
    others = others or x
    size = width // heads
    q, k, v = (
        heads_of(graph, graph.linear(each, width, width), heads, size)
        for each in (x, others, others)
    )
    return graph.linear(joined(graph, mixed(graph, q, k, v, size**-0.5, mask), width), width, width)


def mlp(graph: Graph, x: str, width: int, inner: int, activation: str) -> str:
    """Two products."""
    y = graph.activate(graph.linear(x, width, inner), activation)
    return graph.linear(y, inner, width)


def _sizes(graph: Graph, x: str) -> list[Part]:
    """Batch and rows of a value, for a shape."""
    if graph.form.dynamic:
        return [graph.dim(x, 0), graph.dim(x, 1)]
    return [0, 0]
