"""Discrete Fourier transforms as products with constant tables.

    DFT(x: [2, 8, 1], axis=1)         ->    Reshape(x, [2, 8]), MatMul by [8, 16], Reshape
    STFT(x: [1, 99, 1], 7, window)    ->    Gather(x, [frames, length]), then as DFT

A table holds the powers of the root of unity, with the window and the factor of the inverse in it.
Sums are computed in float32 at least. The table's size must be known: of DFT the axis, of STFT the
length of a frame. All else may be open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.errors import UnsupportedOperatorError

from ..graph import OWN_DOMAIN, Graph, describe
from ..node_builder import Extent, NodeBuilder, attributes_of, known_shape, optional_input
from ..node_extents import extents_of, known, times
from .registry import rewrites

AXIS_BY_INPUT = 20  # of DFT
MAX_TABLE_BYTES = 1 << 28


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
    extent = known(build, shape[axis], f"the size of axis {axis} of its signal")
    inverse, onesided = (bool(attributes.get(name, 0)) for name in ("inverse", "onesided"))
    length = _whole(node, graph, 1, "dft_length")
    if length is None:
        length = 2 * (extent - 1) if inverse and onesided else extent
    if length < 1:
        raise ValueError(f"a transform of {length} elements")
    read = min(extent, length // 2 + 1 if inverse and onesided else length)
    _check_size(node, read * parts, 2 * length)
    table = _real_table(read, length) if inverse and onesided else _table(read, length, inverse)
    if onesided and not inverse:
        table = table[:, :, : length // 2 + 1]
    table = table[:, :parts]
    signal = x
    if read < extent:
        signal = build.add("Gather", signal, build.constant(np.arange(read)), axis=axis)
    order = [*(place for place in range(rank - 1) if place != axis), axis, rank - 1]
    if order != list(range(rank)):
        signal = build.add("Transpose", signal, perm=order)
    others = [shape[place] for place in order[:-2]]
    made = [*others, table.shape[2], table.shape[3]]
    if order == list(range(rank)):
        _product(build, signal, table, others, made, node.output[0])
    else:
        product = _product(build, signal, table, others, made)
        back = [order.index(place) for place in range(rank)]
        build.add("Transpose", product, output=node.output[0], perm=back)
    return build.nodes


@rewrites("STFT")
def stft(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Frames of the signal, each multiplied by the window and transformed."""
    build, x, window = NodeBuilder(graph, node), node.input[0], optional_input(node, 2)
    batch, samples, last = extents_of(build, x)
    parts = known(build, last, "whether its signal is complex")
    step, length = _whole(node, graph, 1, "frame_step"), _whole(node, graph, 3, "frame_length")
    if length is None:
        whole = known_shape(graph, node, window)[0] if window else samples
        length = known(build, whole, "the length of its frames")
    if length < 1 or (isinstance(samples, int) and samples < length):
        raise ValueError(f"frames of {length} elements in a signal of {samples}")
    if step is None or step < 1:
        raise ValueError(f"frame_step is {step}; it must be positive")
    if window and known_shape(graph, node, window) != (length,):
        raise ValueError(f"the window has not {length} elements, as a frame has")
    onesided = bool(attributes_of(node).get("onesided", 1))
    _check_size(node, length * parts, length + 2 if onesided else 2 * length)
    table = _table(length, length, inverse=False)[:, :parts]
    if onesided:
        table = table[:, :, : length // 2 + 1]
    frames, count = _frames(build, samples, length, step)
    if window in graph.constants:
        table = table * graph.constants[window].astype(np.float64)[:, None, None, None]
    elif window:
        frames = build.add("Mul", frames, build.reshape(window, (length, 1)))
    others = [batch, count]
    made = [*others, table.shape[2], table.shape[3]]
    _product(build, frames, table, others, made, node.output[0])
    return build.nodes


def _frames(build: NodeBuilder, samples: Extent, length: int, step: int) -> tuple[str, Extent]:
    """The frames of a signal, [N, frames, length, parts], and how many it has."""
    graph, signal = build.graph, build.source.input[0]
    if isinstance(samples, int):
        starts = np.arange(0, samples - length + 1, step)
        places = build.constant(starts[:, None] + np.arange(length))
        return build.add("Gather", signal, places, axis=1), len(starts)
    frames = build.add("Frames", signal, domain=OWN_DOMAIN, length=length, step=step)
    batch, _, parts = graph.dims(signal) or (None, None, None)
    graph.declare(frames, graph.elem_type(signal), (batch, None, length, parts))
    return frames, extents_of(build, frames)[1]


def _whole(node: onnx.NodeProto, graph: Graph, position: int, name: str) -> int | None:
    """The number that an input holds, None if the node does not have the input."""
    value = optional_input(node, position)
    if not value:
        return None
    if value not in graph.constants:
        raise UnsupportedOperatorError(f"{describe(node)}: its input {name!r} must be a constant")
    return int(graph.constants[value].item())


def _check_size(node: onnx.NodeProto, rows: int, columns: int) -> None:
    size = rows * columns * np.dtype(np.float32).itemsize
    if size > MAX_TABLE_BYTES:
        raise UnsupportedOperatorError(
            f"{describe(node)}: its table would have {size} bytes; up to {MAX_TABLE_BYTES} are "
            "supported. Transform fewer elements at once"
        )


def _table(read: int, length: int, inverse: bool) -> np.ndarray:
    """What each part of an element adds to each part of a result: [read, 2, length, 2]."""
    powers = np.outer(np.arange(read), np.arange(length)) % length
    root = np.exp((2j if inverse else -2j) * math.pi * np.arange(length) / length)
    factors = root[powers] / (length if inverse else 1)
    real, imaginary = factors.real, factors.imag
    return np.stack(
        [np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)],
        axis=1,
    )


def _real_table(read: int, length: int) -> np.ndarray:
    """The inverse of one half of a spectrum whose other half mirrors it: [read, 2, length, 1]."""
    table = _table(read, length, inverse=True)[..., :1]
    place = np.arange(read)
    single = (place == 0) | (2 * place == length)  # those that mirror themselves
    table[single, 1] = 0
    return table * np.where(single, 1, 2)[:, None, None, None]


def _product(
    build: NodeBuilder,
    signal: str,
    table: np.ndarray,
    others: Sequence[Extent],
    made: Sequence[Extent],
    output: str = "",
) -> str:
    """[..., read, parts] times a table [read, parts, count, parts], of the shape `made`."""
    elem_type = build.graph.elem_type(build.source.input[0])
    narrow = elem_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    dtype = np.float32 if narrow else helper.tensor_dtype_to_np_dtype(elem_type)
    rows = table.shape[0] * table.shape[1]
    count: Extent = 1
    for size in others:
        count = times(build, count, size)
    flat = build.reshape(signal, [count, rows])
    if narrow:
        flat = build.add("Cast", flat, to=TensorProto.FLOAT)
    product = build.add("MatMul", flat, build.constant(table.reshape(rows, -1), dtype))
    if narrow:
        product = build.add("Cast", product, to=elem_type)
    return build.reshape(product, made, output)
