"""Random numbers, and operators that use them.

RandomUniform, RandomNormal    a kernel: each element from its position and a key
Bernoulli(p)                   random number < p
Multinomial(x)                 for each random number the first class whose cumulative probability
                               exceeds it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import NODE_NUMBER, Attrs, Expr, Place
from ..graph.graph import dtype_named
from ..graph.kernels import emit_kernel, put
from ..operators import apply, operator

FLOATS = ("float16", "bfloat16", "float32", "float64")
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def _numbers(like: Expr, *, normal: bool, **attrs: Any) -> Expr:
    """RandomUniform or RandomNormal, of a given shape or of the input's shape."""
    shape = attrs["shape"] if like is None else ex.known_dims(like)
    dtype = _dtype(attrs, "float32" if like is None else ex.dtype_of(like))
    if dtype not in FLOATS:
        raise ValueError(f"it makes floats, not {dtype}; give the attribute dtype")
    return _drawn(shape, dtype, attrs, normal)


@operator("Bernoulli", static=True)
def _bernoulli(p: Expr, **attrs: Any) -> Expr:
    """1 if a random number of [0, 1) is less than the probability; never for 0, always for 1."""
    own = ex.dtype_of(p)
    drawn = _drawn(ex.known_dims(p), _wide(own), attrs)
    # ONNX's own function draws 1 with the probability 1 - p.
    return relax.op.astype(drawn < ex.cast(p, _wide(own)), _dtype(attrs, own))


@operator("Multinomial", static=True)
def _multinomial(x: Expr, *, sample_size: int = 1, **attrs: Any) -> Expr:
    """Classes of `sample_size` draws from each row of logarithms, which need not be normalised."""
    batch, classes = ex.known_dims(x)
    if not classes:
        raise ValueError("there are no classes to choose from")
    count, wide = sample_size, _wide(ex.dtype_of(x))
    shares = relax.op.nn.softmax(ex.cast(x, wide), 1)
    sums = apply("CumSum", shares, ex.literal(np.array(1)))
    # The random number is less than 1, so its product with the last sum is less than the last sum.
    last = apply("Gather", sums, ex.literal(np.array([classes - 1])), axis=1)
    drawn = _drawn((batch, count), wide, attrs) * last
    sums = relax.op.reshape(sums, (batch, 1, classes))
    exceeds = relax.op.reshape(drawn, (batch, count, 1)) < sums
    first = relax.op.argmax(relax.op.astype(exceeds, "int32"), 2, False)
    return relax.op.astype(first, _dtype(attrs, "int32"))


def _dtype(attrs: Attrs, default: str) -> str:
    return dtype_named(attrs["dtype"]) if attrs.get("dtype") else default


def _wide(dtype: str) -> str:
    return dtype if dtype == "float64" else "float32"


def _drawn(shape: Sequence[int], dtype: str, attrs: Attrs, normal: bool = False) -> Expr:
    """Random numbers from `low` to `high`, or normal ones; fresh in each run without a seed."""
    wide, number, seeded = _wide(dtype), int(attrs[NODE_NUMBER]), "seed" in attrs
    word = int(np.float32(attrs["seed"]).view(np.uint32)) if seeded else number
    words, ty = ex.literal(np.array([word], np.uint64)), relax.TensorType((1,), "uint64")
    key = ex.emit(relax.op.call_pure_packed("vm.builtin.copy", words, ty_args=ty))
    if not seeded:
        # In a separate kernel, so that all elements see one count.
        (key,) = emit_kernel("random_key", [key], [([1], "uint64")], _cycles)
    stream = tirx.const(0 if seeded else number, "uint32")
    names = ("mean", "scale") if normal else ("low", "high")
    first, second = (attrs.get(*each) for each in zip(names, (0.0, 1.0), strict=True))

    def element(place: Place, key: te.Tensor) -> Expr:
        count = tirx.const(0, "uint64")
        for position, extent in zip(place, shape, strict=True):
            count = count * tirx.const(extent, "uint64") + position.astype("uint64")
        counter = [*_halves(count), stream, tirx.const(0, "uint32")]
        words = philox(counter, _halves(key[0]))
        if normal:
            return _normal(words, wide) * tirx.const(second, wide) + tirx.const(first, wide)
        value = _unit(words, wide) * tirx.const(second - first, wide) + tirx.const(first, wide)
        # The upper end is excluded, even after rounding.
        last = np.nextafter(np.array(second, dtype), np.array(first, dtype))
        return te.min(value, tirx.const(float(last), wide)) if first < second else value

    name = "random_numbers"
    return ex.cast(ex.emit_each(name, shape, element, key, hint=name), dtype)


def _cycles(_: Expr, made: Expr) -> None:
    """Writes the CPU's cycle count; the input key is ignored."""
    put(made, tirx.call_llvm_intrin("uint64", "llvm.readcyclecounter"))


def philox(counter: Sequence[Expr], key: Sequence[Expr]) -> list[Expr]:
    """Philox 4x32-10: four random words from a counter of four words and a key of two.

    A counter-based generator (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2,
    3. SC 2011) needs no state between runs: it makes four words of 32 bits from a key and an
    element's position. The key is the node's seed. Without a seed it is the CPU's cycle count at
    each run, and the node's number is part of the counter. So a seed gives the same numbers in
    every run, and an exported library only needs the CPU.

    The key passes through `vm.builtin.copy` of the C++ runtime, because values that only depend on
    constants would be computed at compile time.
    """
    a, b, c, d = counter
    for turn in range(ROUNDS):
        steps = (tirx.const(turn * step % 2**32, "uint32") for step in WEYL)
        keys = [word + step for word, step in zip(key, steps, strict=True)]
        low, high = _halves(a.astype("uint64") * tirx.const(MULTIPLIERS[0], "uint64"))
        other_low, other_high = _halves(c.astype("uint64") * tirx.const(MULTIPLIERS[1], "uint64"))
        a, b, c, d = other_high ^ b ^ keys[0], other_low, high ^ d ^ keys[1], low
    return [a, b, c, d]


def _halves(word: Expr) -> tuple[Expr, Expr]:
    """The low and the high 32 bits of a 64-bit word."""
    # TVM refuses to cast a constant that is too large.
    low = tirx.bitwise_and(word, tirx.const(2**32 - 1, "uint64"))
    high = tirx.shift_right(word, tirx.const(32, "uint64"))
    return low.astype("uint32"), high.astype("uint32")


def _unit(words: Sequence[Expr], dtype: str) -> Expr:
    """A number of [0, 1) with as many random bits as the type holds."""
    if dtype == "float64":
        wide = words[1].astype("uint64") * tirx.const(2**32, "uint64") + words[0].astype("uint64")
        bits = tirx.shift_right(wide, tirx.const(11, "uint64"))
        return bits.astype("int64").astype(dtype) * tirx.const(2.0**-53, dtype)
    bits = tirx.shift_right(words[0], tirx.const(8, "uint32"))
    return bits.astype("int32").astype(dtype) * tirx.const(2.0**-24, dtype)


def _normal(words: Sequence[Expr], dtype: str) -> Expr:
    """A normal number (Box and Muller), with a radius from one number and an angle from another."""
    one = tirx.const(1, dtype)
    if dtype == "float64":
        nearly, turn = _unit(words[:2], dtype), _unit(words[2:], dtype)
        length = one - nearly
    else:
        turn = _unit(words[1:], dtype)
        length = (words[0].astype("int64").astype(dtype) + one) * tirx.const(2.0**-32, dtype)
    # `length` is in (0, 1], so that its logarithm is finite.
    radius = tirx.sqrt(tirx.const(-2, dtype) * tirx.log(length))
    return radius * tirx.cos(turn * tirx.const(2 * math.pi, dtype))


operator("RandomUniform", "RandomUniformLike", static=True)(partial(_numbers, normal=False))
operator("RandomNormal", "RandomNormalLike", static=True)(partial(_numbers, normal=True))
