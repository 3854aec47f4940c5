"""Matrix products of every form, with long epilogues, shared operands, and chains of products."""

from __future__ import annotations

from ..drawing import Draw, Value
from .parts import batch, epilogue, size, weight


def product(d: Draw) -> None:
    """Draws one to three products; each one takes the last value, or an earlier one."""
    value = d.input(d.normal(*_leading(d), size(d), size(d)))
    for _ in range(d.integer(1, 3)):
        source = d.pick([each for each in d.values if len(each.shape) > 1 and each.dtype == "f4"])
        value = value if d.chance(0.75) else source
        form = d.pick((*[_dense] * 5, _gemm, _runtime, _siblings, _vector, _einsum, _fused))
        value = d.attempt(lambda form=form, value=value: form(d, value), value)
        value = epilogue(d, value)
        if d.chance(0.15):
            value = d.attempt(lambda value=value: _moved(d, value), value)


def _leading(d: Draw) -> tuple[int, ...]:
    """Dimensions before those of the matrix."""
    return d.pick(((), (), (batch(d),), (batch(d), d.integer(1, 3)), (1,)))


def _dense(d: Draw, x: Value) -> Value:
    """A product with a constant weight, mostly with a bias."""
    depth, columns = x.shape[-1], size(d)
    y = d.node("MatMul", x, weight(d, depth, columns, terms=depth))
    if d.chance(0.7):
        bias = d.constant(d.normal(columns))
        y = d.node("Add", *((y, bias) if d.chance(0.7) else (bias, y)))
    return y


def _gemm(d: Draw, x: Value) -> Value:
    """Gemm on a matrix, with its attributes."""
    if len(x.shape) != 2:
        x = d.node("Reshape", x, d.integers(-1, x.shape[-1]))
    turned, flipped = d.chance(0.3), d.chance(0.5)
    rows, depth = reversed(x.shape) if turned else x.shape
    columns = size(d)
    w = weight(d, *((columns, depth) if flipped else (depth, columns)), terms=depth)
    extra = []
    if d.chance(0.7):
        shape = d.pick(((columns,), (1, columns), (rows, 1), (rows, columns), (1,), ()))
        extra = [d.either(d.normal(*shape), 0.8)]
    attributes = {"alpha": d.pick((1.0, 0.5, 2.0)), "beta": d.pick((1.0, 0.5, 0.0))}
    return d.node("Gemm", x, w, *extra, transA=int(turned), transB=int(flipped), **attributes)


def _runtime(d: Draw, x: Value) -> Value:
    """A product with an input, perhaps transposed, and perhaps with a batch of that input."""
    depth, columns = x.shape[-1], size(d, 65)
    leading = d.pick((x.shape[:-2], (), tuple(1 for _ in x.shape[:-2])))
    if d.chance(0.4):
        other = d.input(d.normal(*leading, columns, depth, scale=depth**-0.5))
        order = list(range(len(other.shape)))
        other = d.node("Transpose", other, perm=[*order[:-2], order[-1], order[-2]])
    else:
        other = d.input(d.normal(*leading, depth, columns, scale=depth**-0.5))
    return d.node("MatMul", x, other)


def _siblings(d: Draw, x: Value) -> Value:
    """Two or three products of one value, whose results are joined."""
    depth, columns = x.shape[-1], size(d, 65)
    parts = [
        epilogue(d, d.node("MatMul", x, weight(d, depth, columns, terms=depth)), 2)
        for _ in range(d.integer(2, 3))
    ]
    if d.chance(0.3):
        return d.node("Concat", *parts, axis=-1)
    value = parts[0]
    for part in parts[1:]:
        value = d.node(d.pick(("Mul", "Add", "Sub", "Max")), value, part)
    return value


def _vector(d: Draw, x: Value) -> Value:
    """A product with a vector."""
    depth = x.shape[-1]
    if d.chance(0.5):
        y = d.node("MatMul", x, weight(d, depth, terms=depth))
        return d.node("Unsqueeze", y, d.integers(-1))
    return d.node("MatMul", d.input(d.normal(x.shape[-2], scale=x.shape[-2] ** -0.5)), x)


def _einsum(d: Draw, x: Value) -> Value:
    """A product as an Einsum."""
    depth, columns = x.shape[-1], size(d, 33)
    if d.chance(0.5):
        return d.node("Einsum", x, weight(d, depth, columns, terms=depth), equation="...k,kn->...n")
    return d.node("Einsum", x, weight(d, columns, depth, terms=depth), equation="...k,nk->...n")


def _fused(d: Draw, x: Value) -> Value:
    """ONNX Runtime's FusedMatMul, with a scale and transposed operands."""
    depth, columns = x.shape[-1], size(d, 65)
    flipped = d.chance(0.5)
    shape = (columns, depth) if flipped else (depth, columns)
    w = weight(d, *shape, terms=depth)
    return d.contrib("FusedMatMul", x, w, alpha=d.pick((1.0, 0.125)), transB=int(flipped))


def _moved(d: Draw, x: Value) -> Value:
    """Transposes, reshapes or slices a value between products."""
    rank = len(x.shape)
    if d.chance(0.4):
        return d.node("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])
    if d.chance(0.5):
        return d.node("Reshape", x, d.integers(-1, x.shape[-1]))
    end = d.integer(1, x.shape[-1])
    return d.node("Slice", x, d.integers(0), d.integers(end), d.integers(-1))
