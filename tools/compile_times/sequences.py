"""Recurrent networks over words and sounds, and a network over a graph of atoms."""

from __future__ import annotations

from typing import Any

import numpy as np

from .graph import CONTRIB, Form, Graph, Model, Part


def _bytes_of(g: Graph, *shape: int) -> tuple[str, list[str]]:
    """Weights of bytes, and their scale and zero."""
    values, step = _normal_bytes(g, *shape)
    scale = g.constant(np.full(shape[0], shape[1] ** -0.5 * step))
    return g.constant(values, np.int8), [scale, g.constant(np.zeros(shape[0]), np.int8)]


def _normal_bytes(g: Graph, *shape: int) -> tuple[np.ndarray, float]:
    """Normal values, as those of trained weights, in bytes: (bytes, their common scale)."""
    values = g.rng.standard_normal(shape)
    scale = float(np.abs(values).max()) / 127
    return np.rint(values / scale), scale


def _lstm8(g: Graph, x: str, inner: int, hidden: int, both_ways: bool = False) -> str:
    """DynamicQuantizeLSTM: [length, batch, inner] -> [length, batch, hidden or twice that]."""
    sides = 2 if both_ways else 1
    weight, of_weight = _bytes_of(g, sides, inner, 4 * hidden)
    recurrent, of_recurrent = _bytes_of(g, sides, hidden, 4 * hidden)
    bias = g.random(sides, 8 * hidden, spread=0.1)
    names = [x, weight, recurrent, bias, "", "", "", "", *of_weight, *of_recurrent]
    direction = "bidirectional" if both_ways else "forward"
    y = g.node(
        "DynamicQuantizeLSTM", *names, domain=CONTRIB, hidden_size=hidden, direction=direction
    )
    return _flat(g, y, sides * hidden)


def _recurrent(g: Graph, op: str, x: str, inner: int, hidden: int, both_ways: bool) -> str:
    """An LSTM or GRU of float32; shapes as of `_lstm8`."""
    sides, gates = 2 if both_ways else 1, {"LSTM": 4, "GRU": 3}[op]
    spread = hidden**-0.5
    names = [g.random(sides, gates * hidden, each, spread=spread) for each in (inner, hidden)]
    bias = g.random(sides, 2 * gates * hidden, spread=0.1)
    direction = "bidirectional" if both_ways else "forward"
    extra: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    y = g.node(op, x, *names, bias, hidden_size=hidden, direction=direction, **extra)
    return _flat(g, y, sides * hidden)


def _flat(g: Graph, y: str, width: int) -> str:
    """[length, sides, batch, hidden] -> [length, batch, width]."""
    return g.node("Reshape", g.transpose(y, 0, 2, 1, 3), g.ints(0, 0, width))


def _integer_linear(g: Graph, x: str, inner: int, outer: int) -> str:
    """A product of bytes, as onnxruntime.quantization's dynamic quantiser writes it."""
    values, scale, zero = g.nodes("DynamicQuantizeLinear", 3, x)
    weight, step = _normal_bytes(g, inner, outer)
    second = g.constant(weight, np.int8)
    sums = g.node("MatMulInteger", values, second, zero, g.constant(0, np.int8))
    scales = g.node("Mul", scale, g.constant(step * inner**-0.5))
    y = g.node("Mul", g.node("Cast", sums, to=1), scales)
    return g.node("Add", y, g.random(outer, spread=0.1))


def tagger(form: Form) -> Model:
    """Words -> a tag for each: two bidirectional LSTMs of 8 bits, 1 MB."""
    g = Graph(form)
    ids = g.input("ids", (g.batch(), g.size("length", 24)), np.int64)
    x = g.node("Gather", g.random(4000, 48), ids)
    x = _lstm8(g, g.transpose(x, 1, 0, 2), 48, 96, True)
    x = _lstm8(g, x, 192, 96, True)
    x = g.transpose(x, 1, 0, 2)
    y = g.node("Relu", _integer_linear(g, x, 192, 64))
    g.output(g.node("ArgMax", _integer_linear(g, y, 64, 17 + form.head), axis=-1), "tags", np.int64)
    return g.model()


def lstm_59(form: Form) -> Model:
    """A bidirectional LSTM of 150 hidden values over 59 steps, then classes."""
    return _recurrent_tagger(form, "LSTM", 59, 150)


def gru_31(form: Form) -> Model:
    """A bidirectional GRU of 200 hidden values over 31 steps, then classes."""
    return _recurrent_tagger(form, "GRU", 31, 200)


def _recurrent_tagger(form: Form, op: str, length: int, hidden: int) -> Model:
    g = Graph(form)
    x = g.input("x", (g.batch(), g.size("length", length), 64))
    y = _recurrent(g, op, g.transpose(x, 1, 0, 2), 64, hidden, True)
    y = g.linear(g.transpose(y, 1, 0, 2), 2 * hidden, 20 + form.head)
    g.output(g.node("Softmax", y, axis=-1), "shares")
    return g.model()


def voice_embedder(form: Form) -> Model:
    """Three LSTMs of 8 bits over 160 frames of 40 bands -> a vector of length one."""
    g = Graph(form)
    x = g.input("mel", (g.batch(), g.size("frames", 160), 40))
    y, inner = g.transpose(x, 1, 0, 2), 40
    for _ in range(3):
        y = _lstm8(g, y, inner, 256)
        inner = 256
    last = g.node("Gather", y, g.constant(-1, np.int64), axis=0)
    found = g.node("Relu", _integer_linear(g, last, 256, 256 + form.head))
    squares = g.node("ReduceSum", g.node("Mul", found, found), g.ints(-1), keepdims=1)
    length = g.node("Max", g.node("Sqrt", squares), g.constant(1e-6))
    g.output(g.node("Div", found, length), "embedding")
    return g.model()


def atoms(form: Form) -> Model:
    """Kinds and places of atoms, edges between them and angles between edges -> energy, features.

    Three layers: an edge hears from those that it has an angle with, an atom from its edges.
    """
    g, width, bases = Graph(form), 64, 20
    count, edges, angles = g.size("atoms", 48), g.size("edges", 400), g.size("angles", 900)
    kinds = g.input("kinds", (count,), np.int64)
    places = g.input("places", (count, 3))
    source, target = _halves(g, g.input("edges", (2, edges), np.int64))
    first, second = _halves(g, g.input("angles", (2, angles), np.int64))
    apart = g.node("Sub", g.node("Gather", places, source), g.node("Gather", places, target))
    squares = g.node("ReduceSum", g.node("Mul", apart, apart), g.ints(-1), keepdims=1)
    distance = g.node("Sqrt", g.node("Add", squares, g.constant(1e-6)))
    from_centre = g.node("Sub", distance, g.constant(np.linspace(0, 6, bases)))
    power = g.node("Mul", g.node("Mul", from_centre, from_centre), g.constant(-5.0))
    turn = g.node("Cos", g.node("Mul", distance, g.constant(np.pi / 6)))
    cut = g.node("Mul", g.node("Add", turn, g.constant(1.0)), g.constant(0.5))
    ways = g.node("Div", apart, distance)
    both = g.node("Mul", g.node("Gather", ways, first), g.node("Gather", ways, second))
    cosine = g.node("ReduceSum", both, g.ints(-1), keepdims=1)
    around = g.node("Cos", g.node("Mul", cosine, g.constant(np.arange(8))))
    x = g.node("Gather", g.random(100, width), kinds)
    of_edges = g.linear(g.node("Exp", power), bases, width)
    for _ in range(3):
        ends = (g.node("Gather", of_edges, each) for each in (first, second))
        triple = g.node("Concat", *ends, around, axis=1)
        gate = g.node("Sigmoid", g.linear(triple, 2 * width + 8, width))
        y = g.node("Mul", gate, _shifted_softplus(g, g.linear(triple, 2 * width + 8, width)))
        of_edges = g.node("Add", of_edges, _sums(g, y, first, g.same(source, 0, edges), width))
        weight = g.node("Mul", _mlp(g, of_edges, width, width), cut)
        y = g.node("Mul", g.node("Gather", g.linear(x, width, width), source), weight)
        sums = _sums(g, y, target, g.same(x, 0, count), width)
        x = g.node("Add", x, _mlp(g, sums, width, width))
    each = _mlp(g, x, width, 1 + form.head)
    g.output(g.node("ReduceSum", each, g.ints(0), keepdims=0), "energy")
    g.output(x, "features")
    return g.model()


def _halves(g: Graph, pairs: str) -> list[str]:
    """Both rows of a [2, count]."""
    return [g.node("Squeeze", g.slice(pairs, 0, at, at + 1), g.ints(0)) for at in (0, 1)]


def _sums(g: Graph, rows: str, owners: str, count: Part, width: int) -> str:
    """[count, width]: the sum of the rows of each owner."""
    nothing = g.node("Expand", g.constant([[0.0]]), g.shape(count, width))
    places = g.node("Expand", g.node("Unsqueeze", owners, g.ints(1)), g.node("Shape", rows))
    return g.node("ScatterElements", nothing, places, rows, axis=0, reduction="add")


def _mlp(g: Graph, x: str, width: int, outer: int) -> str:
    return g.linear(_shifted_softplus(g, g.linear(x, width, width)), width, outer)


def _shifted_softplus(g: Graph, x: str) -> str:
    return g.node("Sub", g.node("Softplus", x), g.constant(float(np.log(2))))
