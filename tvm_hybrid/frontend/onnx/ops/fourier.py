"""Discrete Fourier transforms as products with tables.

    DFT(x: [2, 8, 1], axis=1)         ->    R.reshape(x, [2, 8]), R.matmul by [8, 16], R.reshape
    STFT(x: [1, 99, 1], 7, window)    ->    R.take(x, [frames, length]), then a DFT of each frame

A table holds the powers of the root of unity, times the window and the factor of the inverse. A
long transform of a static size is two products with small tables. Sums are computed in float32 at
least. Tables of a dynamic size are computed at run time. The length of STFT's frames is static,
unless one frame is a whole signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ... import expressions as ex
from ...expressions import Expr, Place
from ..graph.requests import check, requested_sizes
from ..graph.sizes import INDEX, index, plain, plain_dims, same_size, simplified
from ..operators import apply, operator
from .pooling import window_count
from .shape import moved

AXIS_BY_INPUT = 20  # first opset in which DFT's axis is an input
MAX_TABLE_BYTES = 1 << 28

Size = int | Expr


@operator("DFT")
def _dft(x: Expr, asked: Expr, axis: Expr, *, node_opset: int, **attrs: Any) -> Expr:
    """DFT as a product along one axis, which is moved next to the parts of the complex numbers."""
    shape = plain_dims(x)
    rank, parts = len(shape), _parts(shape[-1])
    axis = _whole(axis, "axis", -2 if node_opset >= AXIS_BY_INPUT else 1)
    if not (-rank <= axis <= -2 or 0 <= axis <= rank - 2):
        raise ValueError(f"axis {axis} is none of the signal's {rank - 1} dimensions")
    axis %= rank
    extent = shape[axis]
    inverse, onesided = (bool(attrs.get(name, 0)) for name in ("inverse", "onesided"))
    length = 2 * (extent - 1) if inverse and onesided else extent
    if asked is not None:
        (length,) = plain(requested_sizes(asked))
    form = Form(length, parts, inverse, onesided)
    most = length // 2 + 1 if form.mirrored else length
    read = simplified(te.min(index(extent), index(most)))
    if not same_size(read, index(extent)):
        x = relax.op.strided_slice(x, [axis], [index(0)], [read], assume_inbound=True)
        x = ex.normalize(x)
    order = [*(place for place in range(rank - 1) if place != axis), axis, rank - 1]
    if order == list(range(rank)):
        return _transformed(form, x)
    product = _transformed(form, ex.normalize(relax.op.permute_dims(x, order)))
    return relax.op.permute_dims(product, [order.index(place) for place in range(rank)])


@operator("STFT")
def _stft(
    x: Expr, frame_step: Expr, window: Expr, frame_length: Expr, *, onesided: int = 1
) -> Expr:
    """Splits the signal into frames, multiplies each by the window and transforms it."""
    batch, samples, *last = plain_dims(x)
    parts = _parts(*last) if last else 1
    if not last:  # PyTorch exports real signals without the last axis
        x = ex.normalize(relax.op.reshape(x, (batch, samples, 1)))
    step, length = _whole(frame_step, "frame_step"), _whole(frame_length, "frame_length")
    if step is None or step < 1:
        raise ValueError(f"frame_step is {step}; it must be positive")
    if length is None:
        length = samples if window is None else ex.known_dims(window)[0]
    form = Form(length, parts, inverse=False, onesided=bool(onesided))
    if not isinstance(length, int):
        return _transformed(form, ex.normalize(relax.op.reshape(x, (batch, 1, samples, parts))))
    misfit = f"frames of {length} elements in a signal of {samples}"
    check(tirx.all(index(length) >= 1, index(samples) >= length), misfit)
    if window is not None and ex.known_dims(window) != (length,):
        raise ValueError(f"the window needs {length} elements, as many as a frame")
    frames = _frames(x, length, step)
    weights = ex.constant(window)
    if window is not None and weights is None:
        frames = ex.normalize(frames * relax.op.reshape(window, (length, 1)))
    return _transformed(form, frames, weights)


def _parts(size: Size) -> int:
    """Parts of a signal's element, 1 if real and 2 if complex; ValueError if they are dynamic."""
    if not isinstance(size, int):
        raise ValueError("whether its signal is complex must be known")
    return size


def _whole(value: Expr | None, name: str, default: int | None = None) -> Any:
    """The number in a constant input; the default if the node does not have the input."""
    array = ex.constant(value)
    if value is not None and array is None:
        raise ValueError(f"its input {name!r} must be a constant")
    return default if array is None else int(array.item())


def _frames(x: Expr, length: int, step: int) -> Expr:
    """The frames of a signal, [N, frames, length, parts]; a frame begins every `step` elements, and
    all frames are inside the signal."""
    batch, samples, parts = plain_dims(x)
    if isinstance(samples, int):
        starts = np.arange(0, samples - length + 1, step)
        return apply("Gather", x, ex.literal(starts[:, None] + np.arange(length)), axis=1)
    count = window_count(samples, (0, 0), length, step, 1)

    def element(at: Place, flat: te.Tensor) -> Expr:
        return flat[at[0], at[1] * step * parts + at[2]]

    # The innermost loop copies a whole frame, which is contiguous, in vectors.
    flat = ex.normalize(relax.op.reshape(x, (batch, samples * parts)))
    shape = [index(0) + batch, count, length * parts]
    frames = ex.emit_each("frames", shape, element, flat, hint="frames")
    return ex.normalize(relax.op.reshape(frames, (batch, count, length, parts)))


@dataclass(frozen=True)
class Form:
    """The form of a transform.

    Parameters
    ----------
    length
        Number of elements of the transform.
    parts
        1 if the signal is real, 2 if it is complex.
    """

    length: Size
    parts: int
    inverse: bool
    onesided: bool

    @property
    def mirrored(self) -> bool:
        """Whether the signal is one half of a spectrum, and the result is real."""
        return self.inverse and self.onesided

    @property
    def made(self) -> Size:
        """Number of elements of the result."""
        return self.length // 2 + 1 if self.onesided and not self.inverse else self.length

    @property
    def made_parts(self) -> int:
        """Parts of a result's element: 1 if only the real parts are returned, else 2."""
        return 1 if self.mirrored else 2


def _transformed(form: Form, signal: Expr, window: np.ndarray | None = None) -> Expr:
    """Multiplies a signal [..., read, parts] by one or two tables to [..., made, parts]."""
    *others, read, parts = plain_dims(signal)
    dtype, made, made_parts = ex.dtype_of(signal), form.made, form.made_parts
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    count, is_known = math.prod(others), isinstance(read, int) and isinstance(form.length, int)
    factors = factors_of(form, read, count) if is_known else None
    flat_shape = (count, read, parts) if factors else (count, read * parts)
    flat = ex.cast(relax.op.reshape(signal, flat_shape), wide)
    if factors:
        _check_size(factors.table_numbers, wide)
        weights = window
        if form.mirrored:
            weights = _weights(factors.read, factors.first * factors.second)
        if weights is not None:
            flat = ex.normalize(flat * ex.literal(weights[:, None].astype(wide)))
        product = _factored_product(factors, flat, count, wide)
    else:
        _check_size(read * parts * made * made_parts, wide)
        if is_known:
            values = _known_table(form, read)
            if window is not None:
                values = values * window.astype(np.float64)[:, None, None, None]
            table: Expr = ex.literal(values.reshape(read * parts, -1).astype(wide))
        else:
            table = _table(form, read, wide)
        product = ex.normalize(relax.op.matmul(flat, table))
    return relax.op.reshape(ex.cast(product, dtype), (*others, made, made_parts))


def _check_size(numbers: Size, dtype: str) -> None:
    """Refuses tables that are too large, at import or at run time."""
    size = numbers * np.dtype(dtype).itemsize
    misfit = f"its tables would have {size} bytes; up to {MAX_TABLE_BYTES} are supported"
    check(index(size) <= index(MAX_TABLE_BYTES), f"{misfit}. Transform fewer elements at once")


def _known_table(form: Form, read: int) -> np.ndarray:
    """Factors [read, parts, made, parts] from each part of an input to each part of a result."""
    assert isinstance(form.length, int)
    factors = roots(read, form.made, form.length, form.inverse)
    factors = factors / (form.length if form.inverse else 1)
    both = np.stack([factors, 1j * factors], 1)
    table = np.stack([both.real, both.imag], -1)[:, : form.parts, :, : form.made_parts]
    if form.mirrored:
        weights = _weights(read, form.length)
        table[weights == 1, 1:] = 0
        table = table * weights[:, None, None, None]
    return table


def _weights(read: int, length: int) -> np.ndarray:
    """Weights of the elements of half a spectrum, 1 for one that is its own mirror, else 2."""
    place = np.arange(read)
    return np.where((place == 0) | (2 * place == length), 1, 2)


def _table(form: Form, read: Size, dtype: str) -> Expr:
    """Computes a table of dynamic size at run time, [read * parts, made * made_parts]."""
    parts, made_parts, length = form.parts, form.made_parts, index(form.length)
    read, made = index(read), index(form.made)
    check(length > index(0), "a transform of no elements")

    def root(place: Place, length: Expr) -> Expr:
        """The cosine or sine of a power's angle, times the factor of the inverse."""
        (power, part), whole = place, tirx.Cast("float64", length)
        # Each power of the root is computed in float64 and rounded once.
        angle = tirx.Cast("float64", power) * tirx.const(2 * math.pi, "float64") / whole
        value = tirx.Select(tirx.EQ(part, index(0)), tirx.cos(angle), tirx.sin(angle))
        return tirx.Cast(dtype, value / whole if form.inverse else value)

    def entry(place: Place, roots: te.Tensor) -> Expr:
        """Entry (2 j + p, 2 k + q): the factor from part p of element j to part q of element k."""
        (row, column), length = place, roots.shape[0]
        j, part = tirx.floordiv(row, parts), tirx.floormod(row, parts)
        k, made_part = tirx.floordiv(column, made_parts), tirx.floormod(column, made_parts)
        power = tirx.floormod(j * k, te.max(length, 1))
        crossed = tirx.Cast(INDEX, tirx.NE(part, made_part))
        # The real part subtracts the imaginary part's sine; without `inverse` the angle is < 0.
        sign = tirx.EQ(part, index(1 if form.inverse else 0))
        negative = tirx.all(tirx.NE(part, made_part), sign)
        value = roots[power, crossed]
        value = tirx.Select(negative, -value, value)
        if not form.mirrored:
            return value
        # An element with a distinct mirror counts twice; the others are real.
        single = tirx.any(tirx.EQ(j, index(0)), tirx.EQ(j * 2, length))
        once = tirx.Select(tirx.EQ(part, index(0)), value, tirx.const(0, dtype))
        return tirx.Select(single, once, value * tirx.const(2, dtype))

    found = ex.emit_each("roots", [length, index(2)], root, length, hint="fourier_roots")
    shape, name = [read * parts, made * made_parts], "fourier_table"
    return ex.emit_each(name, shape, entry, found, hint=name)


# A long Fourier transform as two products with small tables (Cooley and Tukey, 1965).
#
#     R.matmul(x: [4, 4096], table: [4096, 8192])
#     ->
#     R.reshape(x, [4, 64, 64]), R.permute_dims           [4, n2, n1]
#     R.matmul by [64, 128], multiply, matmul, multiply,  [4, n2, (part, k1)], times the twiddle
#     add                                                 factors
#     R.reshape, R.permute_dims                           [4, k1, (part, n2)]
#     R.matmul by [128, 128], reshape, permute_dims       [4, (k2, k1), part]
#
# Element n1 * second + n2 of a signal adds to element k1 + first * k2 of its transform. The twiddle
# factor of n2 and k1 multiplies a complex number. The second product with the first table computes
# that number times i, so that the multiplications and the addition are epilogues of products.


_BYTE = 0.5
"""Multiplications in the time of moving one byte.

Both constants are fitted to 54 transforms of 60 to 1024 elements (1, 4 and 64 signals, AVX2, one
core): the faster form is chosen for 51, and the others lose less than 1.8 times.
"""
_KERNELS = 80_000.0
"""Multiplications in the time of calling the additional kernels."""
_USUAL_ROWS = 4
"""Number of signals that the estimate assumes if it is dynamic."""


@dataclass(frozen=True)
class Factors:
    """A transform of `first` * `second` elements as two products.

    Parameters
    ----------
    read
        Number of elements in the signal; the missing ones count as 0.
    """

    form: Form
    first: int
    second: int
    read: int

    @property
    def rows(self) -> int:
        """Rows of `second` elements in the signal, the last one padded with zeros."""
        return -(-self.read // self.second)

    @property
    def columns(self) -> int:
        """Columns of `first` elements in the result, the last one cut."""
        return -(-self.form.made // self.first)

    @property
    def opening(self) -> int:
        """Number of elements in the first product's two tables."""
        return 2 * self.rows * self.form.parts * 2 * self.first

    @property
    def closing(self) -> int:
        """Number of elements in the last product's table."""
        return 2 * self.second * self.columns * self.form.made_parts

    @property
    def table_numbers(self) -> int:
        """Number of elements in all constants."""
        return self.opening + 4 * self.second * self.first + self.closing


def factors_of(form: Form, read: int, count: Size) -> Factors | None:
    """The factors of a transform as two products; None if one product is estimated to be faster.

    Parameters
    ----------
    count
        Number of signals.
    """
    length, parts, made_parts = form.length, form.parts, form.made_parts
    first = max(size for size in range(1, math.isqrt(length) + 1) if length % size == 0)
    factors = Factors(form, first, length // first, read)
    rows = count if isinstance(count, int) else _USUAL_ROWS
    table = read * parts * form.made * made_parts
    one = rows * table + _BYTE * 4 * table
    # Steps other than products copy data: the signal, both intermediate values, the result.
    padded, made = factors.rows * factors.second * parts, factors.columns * first * made_parts
    copied = rows * 2 * (padded + 2 * length + made) + factors.table_numbers
    multiplications = factors.second * factors.opening + first * factors.closing
    split = rows * multiplications + _BYTE * 4 * copied + _KERNELS
    return factors if split < one else None


def _factored_product(factors: Factors, signal: Expr, count: Size, dtype: str) -> Expr:
    """Transforms a signal [count, read, parts] by two products; [count, made, made_parts]."""
    form, first, second, rows = factors.form, factors.first, factors.second, factors.rows
    missing = rows * second - factors.read
    if missing:
        signal = ex.normalize(relax.op.nn.pad(signal, [0, 0, 0, missing, 0, 0]))
    sizes: tuple[Size, ...] = (count, second, rows * form.parts)
    signal = moved(signal, (count, rows, second, form.parts), [0, 2, 1, 3], sizes)
    # Real and imaginary parts of the twiddle factors, each repeated twice: [second, 2 * first].
    twiddles = roots(second, first, first * second, form.inverse)
    turned = []
    for turn, twiddle in ((1, twiddles.real), (1j, twiddles.imag)):
        # The table that sums over n1, times `turn`: [rows * parts, 2 * first].
        table = turn * roots(rows, first, first, form.inverse)
        both = np.stack([table, 1j * table][: form.parts], 1)
        table = np.concatenate([both.real, both.imag], -1).reshape(-1, 2 * first)
        product = relax.op.matmul(signal, ex.literal(table.astype(dtype)))
        turned.append(ex.normalize(product * ex.literal(np.tile(twiddle, 2).astype(dtype))))
    sizes, total = (count * first, 2 * second), turned[0] + turned[1]
    signal = moved(total, (count, second, 2, first), [0, 3, 2, 1], sizes)
    columns, parts = factors.columns, form.made_parts
    # The table that sums over n2: [2 * second, columns * made_parts].
    table = roots(second, columns, second, form.inverse)
    if form.inverse:
        table = table / (first * second)
    both = np.stack([table, 1j * table])
    closing = np.stack([both.real, both.imag][:parts], -1).reshape(2 * second, -1).astype(dtype)
    product = relax.op.matmul(signal, ex.literal(closing))
    sizes = (count, columns * first, parts)
    signal = moved(product, (count, first, columns, parts), [0, 2, 1, 3], sizes)
    if columns * first == form.made:
        return signal
    return ex.normalize(relax.op.strided_slice(signal, [1], [0], [form.made], [1]))


def roots(rows: int, columns: int, length: int, inverse: bool) -> np.ndarray:
    """The root of unity to the power row * column: complex float64 numbers [rows, columns]."""
    root = np.exp((2j if inverse else -2j) * math.pi * np.arange(length) / length)
    return root[np.outer(np.arange(rows), np.arange(columns)) % length]
