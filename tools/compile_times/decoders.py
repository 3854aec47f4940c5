"""Decoders with caches of keys and values: a Llama of 110 M parameters, T5, merged branches."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .encoders import heads_of, joined, mixed
from .graph import CONTRIB, Form, Graph, Model, Part

LOWEST = float(np.finfo(np.float32).min)


class _Llama(Graph):
    """A Llama with products in float32, or with weights of 4 bits."""

    def __init__(self, form: Form, four_bits: bool) -> None:
        super().__init__(form)
        self.four_bits = four_bits

    def linear(self, x: str, inner: int, outer: int, bias: bool = False) -> str:
        if not self.four_bits:
            return super().linear(x, inner, outer, bias)
        block = 32
        shape = (outer, inner // block)
        packed = self.rng.integers(0, 256, (*shape, block // 2), np.uint8)
        scales = self.rng.uniform(0.05, 0.2, shape) * inner**-0.5
        names = self.constant(packed, np.uint8), self.constant(scales)
        sizes: dict[str, Any] = {"K": inner, "N": outer, "bits": 4, "block_size": block}
        return self.node("MatMulNBits", x, *names, domain=CONTRIB, **sizes)


def rms_norm(g: Graph, x: str, width: int) -> str:
    """A root-mean-square norm in the form that exporters write."""
    mean = g.node("ReduceMean", g.node("Pow", x, g.constant(2.0)), axes=[-1], keepdims=1)
    root = g.node("Sqrt", g.node("Add", mean, g.constant(1e-5)))
    scaled = g.node("Mul", x, g.node("Div", g.constant(1.0), root))
    return g.node("Mul", g.random(width, spread=0.1, around=1), scaled)


def decoder(form: Form, four_bits: bool = False, layers: int = 12) -> Model:
    """Tokens and caches of a past -> scores of words, and the caches with these tokens added.

    A Llama with 768 values for each token, 12 heads and 32000 words.
    """
    g = _Llama(form, four_bits)
    width, heads, inner, words = 768, 12, 2048, 32000
    size = width // heads
    batch, tokens, past = g.batch(), g.size("tokens", 1), g.size("past", 128)
    whole: Part = "past + tokens" if form.dynamic else 129
    if form.dynamic:
        g.size("past + tokens", 129)
    ids = g.input("input_ids", (batch, tokens), np.int64)
    mask = g.input("attention_mask", (batch, whole), np.int64)
    positions = g.input("position_ids", (batch, tokens), np.int64)
    shape = (batch, heads, past, size)
    caches = [
        [g.input(f"past_key_values.{layer}.{kind}", shape) for kind in ("key", "value")]
        for layer in range(layers)
    ]
    hidden = _causal(g, mask, ids, caches[0][0])
    turns = 10000.0 ** -(np.arange(size // 2) / (size // 2))
    floats = g.node("Unsqueeze", g.node("Cast", positions, to=1), g.ints(-1))
    angles = g.node("Mul", floats, g.constant(turns))
    angles = g.node("Unsqueeze", g.node("Concat", angles, angles, axis=-1), g.ints(1))
    cosine, sine = g.node("Cos", angles), g.node("Sin", angles)

    def rotated(x: str) -> str:
        half = size // 2
        low, high = g.slice(x, 3, 0, half), g.slice(x, 3, half, 2**31)
        turned = g.node("Concat", g.node("Neg", high), low, axis=-1)
        return g.node("Add", g.node("Mul", x, cosine), g.node("Mul", turned, sine))

    x, present = g.node("Gather", g.random(words, width), ids), []
    for key, value in caches:
        y = rms_norm(g, x, width)
        q, k, v = (heads_of(g, g.linear(y, width, width), heads, size) for _ in range(3))
        k = g.node("Concat", key, rotated(k), axis=2)
        v = g.node("Concat", value, v, axis=2)
        present += [k, v]
        y = joined(g, mixed(g, rotated(q), k, v, size**-0.5, hidden), width)
        x = g.node("Add", x, g.linear(y, width, width))
        y = rms_norm(g, x, width)
        gate = g.activate(g.linear(y, width, inner), "Swish")
        y = g.node("Mul", gate, g.linear(y, width, inner))
        x = g.node("Add", x, g.linear(y, inner, width))
    g.output(g.linear(rms_norm(g, x, width), width, words + 32 * form.head), "logits")
    for place, each in enumerate(present):
        g.output(each, f"present.{place // 2}.{('key', 'value')[place % 2]}")
    return g.model()


decoder_4bit = functools.partial(decoder, four_bits=True)


def _causal(g: Graph, mask: str, ids: str, cache: str) -> str:
    """[batch, 1, tokens, past + tokens]: 0 if a token sees a key, else the lowest number."""
    if g.form.dynamic:
        past, tokens = (
            g.node("Squeeze", each, g.ints(0)) for each in (g.dim(cache, 2), g.dim(ids, 1))
        )
        whole, zero, one = g.node("Add", past, tokens), *(g.constant(n, np.int64) for n in (0, 1))
        keys = g.node("Range", zero, whole, one)
        rows = g.node("Unsqueeze", g.node("Range", past, whole, one), g.ints(1))
    else:
        keys, rows = g.ints(*range(129)), g.constant([[128]], np.int64)
    later = g.node("Greater", keys, rows)
    padded = g.node("Equal", mask, g.constant(0, np.int64))
    padded = g.node("Unsqueeze", padded, g.ints(1, 2))
    none = g.node("Or", g.node("Unsqueeze", later, g.ints(0, 1)), padded)
    return g.node("Where", none, g.constant(LOWEST), g.constant(0.0))


T5_LAYERS, T5_WIDTH, T5_HEADS, T5_INNER, T5_WORDS = 6, 512, 8, 2048, 32128
T5_SIZE = 64


def _t5_norm(g: Graph, x: str) -> str:
    """A norm of the mean square, without a shift."""
    return rms_norm(g, x, T5_WIDTH)


def _t5_mlp(g: Graph, x: str) -> str:
    y = g.node("Relu", g.linear(_t5_norm(g, x), T5_WIDTH, T5_INNER, False))
    return g.node("Add", x, g.linear(y, T5_INNER, T5_WIDTH, False))


def _t5_heads(g: Graph, x: str) -> str:
    return heads_of(g, g.linear(x, T5_WIDTH, T5_HEADS * T5_SIZE, False), T5_HEADS, T5_SIZE)


def _t5_attention(g: Graph, x: str, q: str, k: str, v: str, bias: str) -> str:
    y = joined(g, mixed(g, q, k, v, 1.0, bias), T5_HEADS * T5_SIZE)
    return g.node("Add", x, g.linear(y, T5_HEADS * T5_SIZE, T5_WIDTH, False))


def _t5_bias(g: Graph, rows: tuple[str, str], keys: str, causal: bool) -> str:
    """[1, heads, rows, keys]: a number for each head and bucket of distances."""
    # `rows` are the scalars where rows begin and end; `keys` is the scalar where keys end.
    one = g.constant(1, np.int64)
    first = g.node("Unsqueeze", g.node("Range", *rows, one), g.ints(1))
    zero = g.constant(0, np.int64)
    other = g.node("Unsqueeze", g.node("Range", zero, keys, one), g.ints(0))
    distance = g.node("Sub", other, first)
    buckets = 32 if causal else 16
    if causal:
        start = zero
        distance = g.node("Neg", g.node("Min", distance, zero))
    else:
        later = g.node("Cast", g.node("Greater", distance, zero), to=7)
        start = g.node("Mul", later, g.constant(buckets, np.int64))
        distance = g.node("Abs", distance)
    exact = buckets // 2
    share = g.node("Div", g.node("Cast", distance, to=1), g.constant(float(exact)))
    logs = g.node("Log", g.node("Max", share, g.constant(1e-9)))
    scale = g.constant((buckets - exact) / np.log(128 / exact))
    far = g.node(
        "Add", g.node("Cast", g.node("Mul", logs, scale), to=7), g.constant(exact, np.int64)
    )
    far = g.node("Min", far, g.constant(buckets - 1, np.int64))
    near = g.node("Less", distance, g.constant(exact, np.int64))
    bucket = g.node("Add", start, g.node("Where", near, distance, far))
    values = g.node("Gather", g.random(32, T5_HEADS), bucket)
    return g.node("Unsqueeze", g.transpose(values, 2, 0, 1), g.ints(0))


def _hidden(g: Graph, mask: str) -> str:
    """[batch, 1, 1, keys]: the numbers to add to scores, so that hidden keys get no weight."""
    present = g.node("Cast", g.node("Unsqueeze", mask, g.ints(1, 2)), to=1)
    return g.node("Mul", g.node("Sub", g.constant(1.0), present), g.constant(LOWEST))


def _scalar(g: Graph, x: str, axis: int) -> str:
    return g.node("Squeeze", g.dim(x, axis), g.ints(0))


def t5_encoder(form: Form) -> Model:
    """ids and mask [batch, tokens] -> states; buckets of distances are computed."""
    g = Graph(form)
    batch, tokens = g.batch(), g.size("tokens", 64)
    ids = g.input("input_ids", (batch, tokens), np.int64)
    mask = g.input("attention_mask", (batch, tokens), np.int64)
    x = g.node("Gather", g.random(T5_WORDS, T5_WIDTH), ids)
    zero, end = g.constant(0, np.int64), _scalar(g, ids, 1)
    bias = g.node("Add", _t5_bias(g, (zero, end), end, False), _hidden(g, mask))
    for _ in range(T5_LAYERS):
        y = _t5_norm(g, x)
        q, k, v = (_t5_heads(g, y) for _ in range(3))
        x = _t5_mlp(g, _t5_attention(g, x, q, k, v, bias))
    x = _t5_norm(g, x)
    g.output(g.linear(x, T5_WIDTH, form.head) if form.head else x, "states")
    return g.model()


class _Branches(Graph):
    """A graph whose branches share weights."""

    def __init__(self, form: Form) -> None:
        super().__init__(form)
        self._weights: list[str] | None = None
        self._at = 0

    def again(self) -> None:
        """Makes `random` return the weights that it made since the last call of this, in order."""
        self._weights, self._at = self._weights or [], 0

    def random(self, *shape: int, spread: float = 1.0, around: float = 0.0) -> str:
        if self._weights is None:
            return super().random(*shape, spread=spread, around=around)
        if self._at == len(self._weights):
            self._weights.append(super().random(*shape, spread=spread, around=around))
        self._at += 1
        return self._weights[self._at - 1]


class _T5Decoder:
    """The body of a T5 decoder; both branches of a merged decoder have it."""

    def __init__(self, form: Form, layers: int) -> None:
        g = self.g = _Branches(form)
        self.layers = layers
        batch, tokens = g.batch(), g.size("tokens", 1)
        keys, past = g.size("encoder_tokens", 64), g.size("past", 16)
        self.mask = g.input("encoder_attention_mask", (batch, keys), np.int64)
        self.ids = g.input("input_ids", (batch, tokens), np.int64)
        self.states = ""
        self.kinds = [
            f"{who}.{what}" for who in ("decoder", "encoder") for what in ("key", "value")
        ]
        lengths = dict(zip(self.kinds, (past, past, keys, keys), strict=True))
        self.caches = [
            {
                kind: g.input(f"past_key_values.{layer}.{kind}", (batch, T5_HEADS, length, T5_SIZE))
                for kind, length in lengths.items()
            }
            for layer in range(layers)
        ]
        self.words = g.random(T5_WORDS, T5_WIDTH)

    def body(self, cached: bool) -> list[str]:
        """Scores of words, then caches; without `cached`, the encoder's caches are computed."""
        g = self.g
        if cached:
            kinds = ("encoder.key", "encoder.value")
            others = [[caches[kind] for kind in kinds] for caches in self.caches]
        else:
            others = [[_t5_heads(g, self.states) for _ in range(2)] for _ in self.caches]
        g.again()
        x = g.node("Gather", self.words, self.ids)
        tokens = _scalar(g, self.ids, 1)
        past = _scalar(g, self.caches[0]["decoder.key"], 2) if cached else g.constant(0, np.int64)
        whole = g.node("Add", past, tokens)
        bias = _t5_bias(g, (past, whole), whole, True)
        hidden, present = _hidden(g, self.mask), []
        for caches, (key, value) in zip(self.caches, others, strict=True):
            y = _t5_norm(g, x)
            q, k, v = (_t5_heads(g, y) for _ in range(3))
            if cached:
                k = g.node("Concat", caches["decoder.key"], k, axis=2)
                v = g.node("Concat", caches["decoder.value"], v, axis=2)
            x = _t5_attention(g, x, q, k, v, bias)
            q = _t5_heads(g, _t5_norm(g, x))
            x = _t5_mlp(g, _t5_attention(g, x, q, key, value, hidden))
            present += [k, v, key, value]
        x = g.node("Mul", _t5_norm(g, x), g.constant(T5_WIDTH**-0.5))
        weight = g.transpose(self.words, 1, 0)
        scores = g.node("MatMul", x, weight)
        if g.form.head:
            scores = g.linear(scores, T5_WORDS, g.form.head, False)
        return [scores, *present]

    def finished(self, results: list[str]) -> Model:
        names = ["logits"]
        names += [f"present.{layer}.{kind}" for layer in range(self.layers) for kind in self.kinds]
        for name, each in zip(names, results, strict=True):
            self.g.output(each, name)
        return self.g.model()


def t5_decoder(form: Form) -> Model:
    """A token and caches -> scores of words and caches."""
    decoder = _T5Decoder(form, T5_LAYERS)
    return decoder.finished(decoder.body(True))


def merged_decoder(form: Form) -> Model:
    """Two layers, with and without caches in the branches of an If on `use_cache_branch`."""
    decoder = _T5Decoder(form, 2)
    g = decoder.g
    keys = g.size("encoder_tokens", 64)
    decoder.states = g.input("encoder_hidden_states", (g.batch(), keys, T5_WIDTH))
    condition = g.input("use_cache_branch", (1,), np.bool_, [True])
    branches = []
    for cached in (True, False):
        with g.branch() as branch:
            for value in decoder.body(cached):
                g.output(value)
        branches.append(branch.graph)
    count = 1 + 4 * decoder.layers
    found = g.nodes("If", count, condition, then_branch=branches[0], else_branch=branches[1])
    return decoder.finished(found)
