"""Attention in the forms that exporters write, and as the operators of ONNX and ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..drawing import Draw, Value
from .chains import layer_norm, perceptron
from .parts import FLOAT, batch, epilogue, weight

LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Sizes:
    """Sizes of one layer; k and v may have fewer heads than q, and more tokens."""

    batch: int
    tokens: int
    heads: int
    groups: int
    head: int

    @property
    def width(self) -> int:
        return self.heads * self.head

    @property
    def kv_heads(self) -> int:
        return self.heads // self.groups


def attention(d: Draw) -> None:
    """Draws one or two attention layers, with the layers around them."""
    heads = d.pick((1, 2, 3, 4))
    s = Sizes(
        batch=batch(d, 2),
        tokens=d.pick((1, 2, 5, 8, 15, 16, 17, 21, 33)),
        heads=heads,
        groups=d.pick([each for each in (1, 1, 2, 4) if heads % each == 0]),
        head=d.pick((1, 3, 4, 8, 15, 16, 17, 32)),
    )
    x = d.input(d.normal(s.batch, s.tokens, s.width))
    if d.chance(0.3):
        x = d.attempt(lambda: layer_norm(d, x), x)
    for _ in range(d.pick((1, 1, 1, 1, 2))):
        form = d.pick((*[written_out] * 5, operator, packed, multi_head))
        x = d.attempt(lambda x=x, form=form: form(d, x, s), x)
        x = d.attempt(lambda x=x: d.node("Add", linear(d, x, s.width), x), x)
        if d.chance(0.3):
            x = d.attempt(lambda x=x: perceptron(d, layer_norm(d, x)), x)
    epilogue(d, x, 2)


def linear(d: Draw, x: Value, columns: int) -> Value:
    """A product with a weight, perhaps with a bias."""
    y = d.node("MatMul", x, weight(d, x.shape[-1], columns, terms=x.shape[-1]))
    return d.node("Add", y, d.constant(d.normal(columns))) if d.chance(0.6) else y


def _heads(d: Draw, x: Value, s: Sizes, count: int) -> Value:
    """[batch, tokens, count * head] -> [batch, count, tokens, head]."""
    split = d.node("Reshape", x, d.integers(d.pick((0, s.batch)), -1, count, s.head))
    return d.node("Transpose", split, perm=[0, 2, 1, 3])


def _projections(d: Draw, x: Value, s: Sizes) -> tuple[Value, Value, Value]:
    """q, k and v by heads, from one product or three; k and v perhaps of another input."""
    if s.groups == 1 and d.chance(0.3):
        joined = linear(d, x, 3 * s.width)
        sizes = [d.integers(*[s.width] * 3)]
        q, k, v = d.several("Split", 3, joined, *sizes, axis=2)
        return _heads(d, q, s, s.heads), _heads(d, k, s, s.heads), _heads(d, v, s, s.heads)
    other = d.input(d.normal(s.batch, d.integer(1, 20), s.width)) if d.chance(0.2) else x
    q = _heads(d, linear(d, x, s.width), s, s.heads)
    k, v = (_heads(d, linear(d, other, s.kv_heads * s.head), s, s.kv_heads) for _ in range(2))
    return q, k, v


def _with_past(d: Draw, now: Value, tokens: int) -> Value:
    """Appends to a cache."""
    shape = (*now.shape[:2], tokens, now.shape[3])
    return d.node("Concat", d.input(d.normal(*shape)), now, axis=2)


def _repeated(d: Draw, x: Value, s: Sizes) -> Value:
    """Repeats each head of k or v for several heads of q."""
    if s.groups == 1:
        return x
    tokens = x.shape[2]
    wide = d.node("Unsqueeze", x, d.integers(2))
    shape = d.integers(s.batch, s.kv_heads, s.groups, tokens, s.head)
    wide = d.node("Expand", wide, shape)
    return d.node("Reshape", wide, d.integers(s.batch, s.heads, tokens, s.head))


def _rotated(d: Draw, x: Value, s: Sizes) -> Value:
    """Rotary position embedding."""
    half = s.head // 2
    angles = np.outer(np.arange(x.shape[2]), 100.0 ** -(np.arange(half) / half))
    angles = np.concatenate([angles, angles], axis=1)[None, None].astype(np.float32)
    low = d.node("Slice", x, d.integers(0), d.integers(half), d.integers(3))
    high = d.node("Slice", x, d.integers(half), d.integers(2 * half), d.integers(3))
    turned = d.node("Concat", d.node("Neg", high), low, axis=-1)
    straight = d.node("Mul", x, d.constant(np.cos(angles)))
    return d.node("Add", straight, d.node("Mul", turned, d.constant(np.sin(angles))))


def written_out(d: Draw, x: Value, s: Sizes) -> Value:
    """Attention as products, a scale, a mask and a softmax."""
    q, k, v = _projections(d, x, s)
    if s.head % 2 == 0 and d.chance(0.2):
        q, k = _rotated(d, q, s), _rotated(d, k, s)
    if d.chance(0.2):
        past = d.pick((1, 4, 7, 16))
        k, v = _with_past(d, k, past), _with_past(d, v, past)
        d.output(k, v)
    k, v = _repeated(d, k, s), _repeated(d, v, s)
    scores = _scores(d, q, k, s)
    weights = d.node("Softmax", _masked(d, scores, s), axis=d.pick((-1, 3)))
    if d.chance(0.15):
        nan = d.node("IsNaN", weights)
        weights = d.node("Where", nan, d.constant(np.float32(0)), weights)
    joined = d.node("Transpose", d.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    return d.node("Reshape", joined, d.integers(d.pick((0, s.batch)), -1, s.width))


def _scores(d: Draw, q: Value, k: Value, s: Sizes) -> Value:
    """q k^T with its scale after or before the product, or its square root on each operand."""
    scale = s.head**-0.5
    form = d.pick(("behind", "over", "before", "both", "none"))
    turned = d.node("Transpose", k, perm=[0, 1, 3, 2])
    if form == "before":
        q = d.node("Mul", q, d.constant(np.float32(scale)))
    elif form == "both":
        root = d.constant(np.float32(scale**0.5))
        q, turned = d.node("Mul", q, root), d.node("Mul", turned, root)
    scores = d.node("MatMul", q, turned)
    if form == "behind":
        return d.node("Mul", scores, d.constant(np.float32(scale)))
    if form == "over":
        return d.node("Div", scores, d.constant(np.float32(1 / scale)))
    return scores


def _masked(d: Draw, scores: Value, s: Sizes) -> Value:
    """Adds a padding mask, a causal mask, a bias, or nothing."""
    rows, columns = scores.shape[-2:]
    form = d.pick(("none", "none", "padding", "causal", "chosen", "bias", "boolean", "infinite"))
    if form == "padding":
        present = d.input((d.numbers.random((s.batch, columns)) < 0.7).astype(np.int64))
        wide = d.node("Unsqueeze", d.node("Cast", present, to=FLOAT), d.integers(1, 2))
        absent = d.node("Sub", d.constant(np.float32(1)), wide)
        return d.node("Add", scores, d.node("Mul", absent, d.constant(np.float32(-1e4))))
    order = np.tri(rows, columns, columns - rows, dtype=bool)
    if form == "causal":
        return d.node("Add", scores, d.constant(np.where(order, 0, LOWEST / 2).astype("f4")))
    if form == "chosen":
        return d.node("Where", d.constant(order[None, None]), scores, d.constant(np.float32(-1e4)))
    if form == "bias":
        shape = d.pick(((1, s.heads, rows, columns), (rows, columns), (s.batch, 1, 1, columns)))
        return d.node("Add", scores, d.either(d.normal(*shape)))
    if form == "boolean":
        absent = d.input(d.numbers.random((s.batch, 1, 1, columns)) < 0.3)
        return d.node("Where", absent, d.constant(np.float32(-1e4)), scores)
    if form == "infinite" and rows <= columns:
        allowed = np.where(order, 0, -np.inf).astype(np.float32)
        d.wild = True
        return d.node("Add", scores, d.constant(allowed))
    return scores


def operator(d: Draw, x: Value, s: Sizes) -> Value:
    """ONNX's Attention, with three or four dimensions."""
    d.opset = max(d.opset, 23)
    q = linear(d, x, s.width)
    k, v = (linear(d, x, s.kv_heads * s.head) for _ in range(2))
    attributes = {"is_causal": int(d.chance(0.4))}
    if d.chance(0.3):
        attributes["softcap"] = 2.0
    mask = []
    if d.chance(0.4):
        shape = d.pick(((s.tokens, s.tokens), (s.batch, 1, s.tokens, s.tokens)))
        mask = [d.either(d.normal(*shape))]
    if d.chance(0.5):
        q, k, v = _heads(d, q, s, s.heads), _heads(d, k, s, s.kv_heads), _heads(d, v, s, s.kv_heads)
        y = d.node("Attention", q, k, v, *mask, **attributes)
        joined = d.node("Transpose", y, perm=[0, 2, 1, 3])
        return d.node("Reshape", joined, d.integers(0, -1, s.width))
    counts = {"q_num_heads": s.heads, "kv_num_heads": s.kv_heads}
    return d.node("Attention", q, k, v, *mask, **counts, **attributes)


def packed(d: Draw, x: Value, s: Sizes) -> Value:
    """ONNX Runtime's Attention, with q, k and v from one weight."""
    w = weight(d, s.width, 3 * s.width, terms=s.width)
    bias = d.constant(d.normal(3 * s.width))
    attributes = {"num_heads": s.heads, "unidirectional": int(d.chance(0.4))}
    mask = []
    if d.chance(0.4):
        mask = [d.input((d.numbers.random((s.batch, s.tokens)) < 0.8).astype(np.int32))]
    return d.contrib("Attention", x, w, bias, *mask, **attributes)


def multi_head(d: Draw, x: Value, s: Sizes) -> Value:
    """ONNX Runtime's MultiHeadAttention, with three projections."""
    q, k, v = (linear(d, x, s.width) for _ in range(3))
    return d.contrib("MultiHeadAttention", q, k, v, num_heads=s.heads)
