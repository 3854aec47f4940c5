"""Discrete Fourier transforms as products with constant tables.

    DFT(x: [2, 8, 1], axis=1)         ->    Reshape(x, [2, 8]), MatMul by [8, 16], Reshape
    STFT(x: [1, 99, 1], 7, window)    ->    Gather(x, [frames, length]), then as DFT

A table holds the powers of the root of unity, with the window and the factor of the inverse in it.
A long transform of a static size is two products with small tables.
Sums are computed in float32 at least. A table of a dynamic size is computed when the model runs
(`ops/matrix.py`). The length of STFT's frames is static, unless one frame is a whole signal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    attributes_of,
    element_of,
    extents_of,
    known,
    known_shape,
    minus,
    optional_input,
    plus,
    times,
    value_of,
)
from ..ops.matrix import MAX_TABLE_BYTES
from .registry import rewrites

AXIS_BY_INPUT = 20  # of DFT


@rewrites("DFT")
def dft(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """A product along one axis, which is moved beside the parts of the complex numbers."""
    build, x, attributes = NodeBuilder(graph, node), node.input[0], attributes_of(node)
    shape = extents_of(build, x)
    rank, parts = len(shape), known(build, shape[-1], "whether its signal is complex")
    if graph.opset < AXIS_BY_INPUT:
        axis = attributes.get("axis", 1)
    else:
        axis = _whole(node, graph, 2, "axis")
        axis = -2 if axis is None else axis
    if not (-rank <= axis <= -2 or 0 <= axis <= rank - 2):
        raise ValueError(f"axis {axis} is none of the signal's {rank - 1} dimensions")
    axis %= rank
    extent = shape[axis]
    inverse, onesided = (bool(attributes.get(name, 0)) for name in ("inverse", "onesided"))
    asked = optional_input(node, 1)
    length = element_of(build, asked) if asked else extent
    if not asked and inverse and onesided:
        length = times(build, 2, minus(build, extent, 1))
    if isinstance(length, int) and length < 1:
        raise ValueError(f"a transform of {length} elements")
    form = _Form(length, parts, inverse, onesided)
    signal, read = _read(
        build, x, axis, extent, _halved(build, length) if form.mirrored else length
    )
    order = [*(place for place in range(rank - 1) if place != axis), axis, rank - 1]
    is_last = order == list(range(rank))
    if not is_last:
        signal = build.add("Transpose", signal, perm=order)
    others = [shape[place] for place in order[:-2]]
    product = _transformed(build, form, signal, read, others, node.output[0] if is_last else "")
    if not is_last:
        back = [order.index(place) for place in range(rank)]
        build.add("Transpose", product, output=node.output[0], perm=back)
    return build.nodes


@rewrites("STFT")
def stft(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Frames of the signal, each multiplied by the window and transformed."""
    build, x, window = NodeBuilder(graph, node), node.input[0], optional_input(node, 2)
    batch, samples, *last = extents_of(build, x)
    parts = known(build, last[0], "whether its signal is complex") if last else 1
    if not last:  # as PyTorch exports real signals
        x = build.reshape(x, [batch, samples, 1])
    step, length = _whole(node, graph, 1, "frame_step"), _whole(node, graph, 3, "frame_length")
    onesided = bool(attributes_of(node).get("onesided", 1))
    if step is None or step < 1:
        raise ValueError(f"frame_step is {step}; it must be positive")
    if length is None and not window and isinstance(samples, str):
        form = _Form(samples, parts, inverse=False, onesided=onesided)
        _transformed(build, form, x, samples, [batch, 1], node.output[0])
        return build.nodes
    if length is None:
        whole = known_shape(graph, node, window)[0] if window else samples
        length = known(build, whole, "the length of its frames")
    if length < 1 or (isinstance(samples, int) and samples < length):
        raise ValueError(f"frames of {length} elements in a signal of {samples}")
    if window and known_shape(graph, node, window) != (length,):
        raise ValueError(f"the window has not {length} elements, as a frame has")
    frames, count = _frames(build, x, samples, length, step)
    weights = graph.constants.get(window)
    if window and weights is None:
        frames = build.add("Mul", frames, build.reshape(window, (length, 1)))
    form = _Form(length, parts, inverse=False, onesided=onesided)
    _transformed(build, form, frames, length, [batch, count], node.output[0], weights)
    return build.nodes


@dataclass(frozen=True)
class _Form:
    """What one transform computes.

    Parameters
    ----------
    length
        Number of elements that the transform is of.
    parts
        1 for a signal of real numbers, 2 for one of complex numbers.
    """

    length: Extent
    parts: int
    inverse: bool
    onesided: bool

    @property
    def mirrored(self) -> bool:
        """Whether the signal is one half of a spectrum, and the result is real."""
        return self.inverse and self.onesided


def _halved(build: NodeBuilder, length: Extent) -> Extent:
    """The elements of one half of a spectrum."""
    if isinstance(length, int):
        return length // 2 + 1
    return plus(build, build.add("Div", length, value_of(build, 2)), 1)


def _read(
    build: NodeBuilder, signal: str, axis: int, extent: Extent, most: Extent
) -> tuple[str, Extent]:
    """The first elements of a signal along an axis, no more than `most`, and their number."""
    if isinstance(extent, int) and isinstance(most, int):
        if most < extent:
            signal = build.add("Gather", signal, build.constant(np.arange(most)), axis=axis)
        return signal, min(extent, most)
    if most == extent:
        return signal, extent
    count = build.add("Min", value_of(build, extent), value_of(build, most))
    first, axes = build.constant([0], np.int64), build.constant([axis], np.int64)
    return build.add("Slice", signal, first, count, axes), count


def _frames(
    build: NodeBuilder, signal: str, samples: Extent, length: int, step: int
) -> tuple[str, Extent]:
    """The frames of a signal, [N, frames, length, parts], and how many it has."""
    graph = build.graph
    if isinstance(samples, int):
        starts = np.arange(0, samples - length + 1, step)
        places = build.constant(starts[:, None] + np.arange(length))
        return build.add("Gather", signal, places, axis=1), len(starts)
    frames = build.add("Frames", signal, domain=OWN_DOMAIN, length=length, step=step)
    batch, *_, parts = graph.dims(build.source.input[0]) or (None,)
    parts = parts if signal == build.source.input[0] else 1
    graph.declare(frames, graph.elem_type(build.source.input[0]), (batch, None, length, parts))
    return frames, extents_of(build, frames)[1]


def _whole(node: onnx.NodeProto, graph: Graph, position: int, name: str) -> int | None:
    """The number that an input holds, None if the node does not have the input."""
    value = optional_input(node, position)
    if not value:
        return None
    if value not in graph.constants:
        raise UnsupportedOperatorError(f"{describe(node)}: its input {name!r} must be a constant")
    return int(graph.constants[value].item())


def _check_size(node: onnx.NodeProto, numbers: int) -> None:
    size = numbers * np.dtype(np.float32).itemsize
    if size > MAX_TABLE_BYTES:
        raise UnsupportedOperatorError(
            f"{describe(node)}: its tables would have {size} bytes; up to {MAX_TABLE_BYTES} are "
            "supported. Transform fewer elements at once"
        )


def _table(read: int, length: int, inverse: bool) -> np.ndarray:
    """What each part of an element adds to each part of a result: [read, 2, length, 2]."""
    powers = np.outer(np.arange(read), np.arange(length))
    factors = roots(powers, length, inverse) / (length if inverse else 1)
    real, imaginary = factors.real, factors.imag
    return np.stack(
        [np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)],
        axis=1,
    )


def _real_table(read: int, length: int) -> np.ndarray:
    """The inverse of one half of a spectrum whose other half mirrors it: [read, 2, length, 1]."""
    table = _table(read, length, inverse=True)[..., :1]
    weights = _weights(read, length)
    table[weights == 1, 1] = 0
    return table * weights[:, None, None, None]


def _weights(read: int, length: int) -> np.ndarray:
    """How often each element of one half of a spectrum is in the whole, itself and mirrored."""
    place = np.arange(read)
    return np.where((place == 0) | (2 * place == length), 1, 2)


def _transformed(
    build: NodeBuilder,
    form: _Form,
    signal: str,
    read: Extent,
    others: Sequence[Extent],
    output: str,
    window: np.ndarray | None = None,
) -> str:
    """A signal [..., read, parts] times a table, or two small ones: [..., made, parts]."""
    elem_type = build.graph.elem_type(build.source.input[0])
    narrow = elem_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    dtype = np.dtype(np.float32 if narrow else helper.tensor_dtype_to_np_dtype(elem_type))
    made, made_parts = form.length, 1 if form.mirrored else 2
    if form.onesided and not form.inverse:
        made = _halved(build, form.length)
    count: Extent = 1
    for size in others:
        count = times(build, count, size)
    factors = None
    if isinstance(read, int) and isinstance(form.length, int) and isinstance(made, int):
        parts = form.parts, made, made_parts
        factors = factors_of(form.length, read, *parts, form.inverse, count)
    width = times(build, read, form.parts)
    flat = build.reshape(signal, [count, read, form.parts] if factors else [count, width])
    if narrow:
        flat = build.add("Cast", flat, to=TensorProto.FLOAT)
    if factors:
        _check_size(build.source, factors.table_numbers)
        weights = window
        if form.mirrored:
            weights = _weights(factors.read, factors.first * factors.second)
        if weights is not None:
            flat = build.add("Mul", flat, build.constant(weights[:, None], dtype))
        product = factored_product(build, factors, flat, count, dtype)
    else:
        table = _whole_table(build, form, read, made, made_parts, dtype, window)
        product = build.add("MatMul", flat, table)
    if narrow:
        product = build.add("Cast", product, to=elem_type)
    return build.reshape(product, [*others, made, made_parts], output)


def _whole_table(
    build: NodeBuilder,
    form: _Form,
    read: Extent,
    made: Extent,
    made_parts: int,
    dtype: np.dtype,
    window: np.ndarray | None,
) -> str:
    """The table of one product, [read * parts, made * made_parts]."""
    if isinstance(read, int) and isinstance(form.length, int) and isinstance(made, int):
        values = _known_table(build.source, form, read, made)
        if window is not None:
            values = values * window.astype(np.float64)[:, None, None, None]
        return build.constant(values.reshape(read * form.parts, -1), dtype)
    sizes = (value_of(build, each) for each in (read, made, form.length))
    table = build.add(
        "FourierTable", *sizes, domain=OWN_DOMAIN, parts=form.parts, made_parts=made_parts,
        inverse=int(form.inverse), mirrored=int(form.mirrored), dtype=str(dtype),
    )  # fmt: skip
    rows = read * form.parts if isinstance(read, int) else None
    columns = made * made_parts if isinstance(made, int) else None
    build.graph.declare(table, helper.np_dtype_to_tensor_dtype(dtype), (rows, columns))
    return table


def _known_table(node: onnx.NodeProto, form: _Form, read: int, made: int) -> np.ndarray:
    """The table of static sizes, [read, parts, made, parts]."""
    assert isinstance(form.length, int)
    _check_size(node, read * form.parts * made * (1 if form.mirrored else 2))
    if form.mirrored:
        return _real_table(read, form.length)[:, : form.parts]
    return _table(read, form.length, form.inverse)[:, : form.parts, :made]


# A long Fourier transform as two products with small tables (Cooley and Tukey, 1965).
#
#     MatMul(x: [4, 4096], table: [4096, 8192])
#     ->
#     Reshape(x, [4, 64, 64]), Transpose               [4, n2, n1]
#     MatMul by [64, 128], Mul, MatMul, Mul, Add       [4, n2, (part, k1)], times the twiddle
#     factors
#     Reshape, Transpose                               [4, k1, (part, n2)]
#     MatMul by [128, 128], Reshape, Transpose         [4, (k2, k1), part]
#
# Element n1 * second + n2 of a signal adds to element k1 + first * k2 of its transform. The twiddle
# factor of n2 and k1 multiplies a complex number. The second product with the first table computes
# that number times i, so that the multiplications and the addition are epilogues of products.


_BYTE = 0.5
"""Multiplications that take as long as one moved byte.

Both constants are fitted to 54 transforms of 60 to 1024 elements (1, 4 and 64 signals, AVX2, one
core): the faster form is chosen for 51, and the others lose less than 1.8 times.
"""
_KERNELS = 80_000.0
"""Multiplications that take as long as the calls of the additional kernels."""
_USUAL_ROWS = 4
"""The number of signals for the estimate if it is open."""


@dataclass(frozen=True)
class Factors:
    """A transform of `first` * `second` elements as two products.

    Parameters
    ----------
    read
        Number of elements that the signal has; elements behind them are 0.
    parts
        1 for a signal of real numbers, 2 for one of complex numbers.
    made
        Number of elements of the result.
    made_parts
        1 if only the real parts are results.
    """

    first: int
    second: int
    read: int
    parts: int
    made: int
    made_parts: int
    inverse: bool

    @property
    def rows(self) -> int:
        """Runs of `second` elements in the signal, the last one padded with zeros."""
        return -(-self.read // self.second)

    @property
    def columns(self) -> int:
        """Runs of `first` elements in the result, the last one cut."""
        return -(-self.made // self.first)

    @property
    def multiplications(self) -> int:
        """The multiplications of one signal."""
        opening = 2 * self.second * self.rows * self.parts * 2 * self.first
        return opening + self.first * 2 * self.second * self.columns * self.made_parts

    @property
    def moved(self) -> int:
        """Numbers of one signal that are read or written by what is no product."""
        made = self.columns * self.first * self.made_parts
        return 2 * (self.rows * self.second * self.parts + 2 * self.first * self.second + made)

    @property
    def table_numbers(self) -> int:
        """Numbers of all constants."""
        opening = 2 * self.rows * self.parts * 2 * self.first
        twiddles = 4 * self.second * self.first
        return opening + twiddles + 2 * self.second * self.columns * self.made_parts


def factors_of(
    length: int, read: int, parts: int, made: int, made_parts: int, inverse: bool, count: Extent
) -> Factors | None:
    """The two products of a transform; None if one product is estimated to be faster.

    Parameters
    ----------
    count
        Number of signals.
    """
    first = max(size for size in range(1, math.isqrt(length) + 1) if length % size == 0)
    factors = Factors(first, length // first, read, parts, made, made_parts, inverse)
    rows = count if isinstance(count, int) else _USUAL_ROWS
    table = read * parts * made * made_parts
    one = rows * table + _BYTE * 4 * table
    moved = rows * factors.moved + factors.table_numbers
    split = rows * factors.multiplications + _BYTE * 4 * moved + _KERNELS
    return factors if split < one else None


def factored_product(
    build: NodeBuilder, factors: Factors, signal: str, count: Extent, dtype: npt.DTypeLike
) -> str:
    """The transform of a signal [count, read, parts], [count, made, made_parts]."""
    first, second, rows = factors.first, factors.second, factors.rows
    missing = rows * second - factors.read
    if missing:
        pads = build.constant([0, 0, 0, 0, missing, 0], np.int64)
        signal = build.add("Pad", signal, pads)
    signal = build.reshape(signal, [count, rows, second, factors.parts])
    signal = build.add("Transpose", signal, perm=[0, 2, 1, 3])
    signal = build.reshape(signal, [count, second, rows * factors.parts])
    turned = []
    for turn, twiddles in zip((1, 1j), _twiddles(factors), strict=True):
        table = build.constant(_opening_table(factors, turn), dtype)
        product = build.add("MatMul", signal, table)
        turned.append(build.add("Mul", product, build.constant(twiddles, dtype)))
    signal = build.add("Add", *turned)
    signal = build.reshape(signal, [count, second, 2, first])
    signal = build.add("Transpose", signal, perm=[0, 3, 2, 1])
    signal = build.reshape(signal, [times(build, count, first), 2 * second])
    signal = build.add("MatMul", signal, build.constant(_closing_table(factors), dtype))
    columns, parts = factors.columns, factors.made_parts
    signal = build.reshape(signal, [count, first, columns, parts])
    signal = build.add("Transpose", signal, perm=[0, 2, 1, 3])
    signal = build.reshape(signal, [count, columns * first, parts])
    if columns * first == factors.made:
        return signal
    start, stop, axes = (build.constant([each], np.int64) for each in (0, factors.made, 1))
    return build.add("Slice", signal, start, stop, axes)


def roots(powers: np.ndarray, length: int, inverse: bool) -> np.ndarray:
    """Powers of the root of unity, complex numbers of float64."""
    root = np.exp((2j if inverse else -2j) * math.pi * np.arange(length) / length)
    return root[powers % length]


def _opening_table(factors: Factors, turn: complex) -> np.ndarray:
    """Sums over n1, times `turn`: [rows * parts, 2 * first]."""
    powers = np.outer(np.arange(factors.rows), np.arange(factors.first))
    table = turn * roots(powers, factors.first, factors.inverse)
    both = np.stack([table, 1j * table][: factors.parts], 1)
    return np.concatenate([both.real, both.imag], -1).reshape(-1, 2 * factors.first)


def _twiddles(factors: Factors) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary parts of the twiddle factors, both twice: [second, 2 * first]."""
    powers = np.outer(np.arange(factors.second), np.arange(factors.first))
    values = roots(powers, factors.first * factors.second, factors.inverse)
    return np.tile(values.real, 2), np.tile(values.imag, 2)


def _closing_table(factors: Factors) -> np.ndarray:
    """Sums over n2: [2 * second, columns * made_parts]."""
    powers = np.outer(np.arange(factors.second), np.arange(factors.columns))
    table = roots(powers, factors.second, factors.inverse)
    if factors.inverse:
        table = table / (factors.first * factors.second)
    both = np.stack([table, 1j * table])
    parts = np.stack([both.real, both.imag][: factors.made_parts], -1)
    return parts.reshape(2 * factors.second, -1)
