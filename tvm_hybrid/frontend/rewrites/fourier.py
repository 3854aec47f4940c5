"""Discrete Fourier transforms as products with constant tables.

    DFT(x: [2, 8, 1], axis=1)         ->    Reshape(x, [2, 8]), MatMul by [8, 16], Reshape
    STFT(x: [1, 99, 1], 7, window)    ->    Gather(x, [frames, length]), then as DFT

A table holds the powers of the root of unity, with the window and the factor of the inverse in it.
A long transform of a static size is two products with small tables (fourier_factors.py).
Sums are computed in float32 at least. A table of a dynamic size is computed when the model runs
(fourier_converters.py). The length of STFT's frames is static, unless one frame is a whole signal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import UnsupportedOperatorError

from ..fourier_converters import MAX_TABLE_BYTES
from ..graph import OWN_DOMAIN, Graph, describe
from ..node_builder import Extent, NodeBuilder, attributes_of, known_shape, optional_input
from ..node_extents import element_of, extents_of, known, minus, plus, times, value_of
from .fourier_factors import factored_product, factors_of, roots
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
