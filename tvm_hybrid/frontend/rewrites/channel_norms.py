"""Normalisations over channels, in elementwise operators and slices.

LRN(x, size=3)                  ->    x * exp(-beta * log(bias + alpha / 3 * (s0 + s1 + s2)))
                                      s0, s1, s2: slices of Pad(x * x) one channel apart
LpNormalization(x, axis, p)     ->    x / Max(ReduceL1 or ReduceL2(x, axis), smallest)
GlobalLpPool(x, p=1 or 2)       ->    ReduceL1 or ReduceL2 over the spatial axes

ONNX, "LRN": channel c sums those from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2). With
the usual beta = 0.75 the power is two square roots.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites

SLICES_BY_INPUT = 10


@rewrites("LRN")
def local_response_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A sum of slices, for float32 of a known shape.

    Raises
    ------
    UnsupportedOperatorError
        Of another type, an even size.
    """
    x = node.input[0]
    shape, attributes = graph.shape(x), attributes_of(node)
    size, beta = attributes["size"], attributes.get("beta", 0.75)
    if shape is None or len(shape) < 2 or graph.elem_type(x) != onnx.TensorProto.FLOAT:
        if size % 2 == 0:
            raise UnsupportedOperatorError(
                f"{describe(node)}: size={size} is even, which is for float32 alone; use an odd one"
            )
        return None  # TVM's importer takes one channel too many for an even size
    build = NodeBuilder(graph, node)
    padded = _pad_channels(build, build.add("Mul", x, x), shape, (size - 1) // 2, size // 2)
    slices = [_channels(build, padded, first, shape[1]) for first in range(size)]
    total = build.add("Sum", *slices)
    scaled = build.add("Mul", total, build.number(x, attributes.get("alpha", 1e-4) / size))
    spread = build.add("Add", scaled, build.number(x, attributes.get("bias", 1.0)))
    if beta == 0.75:
        root = build.add("Sqrt", spread)
        power = build.add("Mul", root, build.add("Sqrt", root))
        build.add("Div", x, power, output=node.output[0])
        return build.nodes
    exponent = build.add("Mul", build.add("Log", spread), build.number(x, -beta))
    build.add("Mul", x, build.add("Exp", exponent), output=node.output[0])
    return build.nodes


def _pad_channels(
    build: NodeBuilder, value: str, shape: tuple[int, ...], before: int, after: int
) -> str:
    """Zero channels before and after."""
    zeros = [np.zeros((shape[0], count, *shape[2:]), np.float32) for count in (before, after)]
    first, last = ([build.constant(edge)] if edge.size else [] for edge in zeros)
    parts = [*first, value, *last]
    return build.add("Concat", *parts, axis=1) if len(parts) > 1 else value


def _channels(build: NodeBuilder, value: str, first: int, count: int) -> str:
    """Consecutive channels."""
    if build.graph.opset >= SLICES_BY_INPUT:
        bounds = [build.constant([number], np.int64) for number in (first, first + count, 1)]
        return build.add("Slice", value, *bounds)
    return build.add("Slice", value, starts=[first], ends=[first + count], axes=[1])


@rewrites("LpNormalization")
def lp_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A reduction and a division; where the norm is 0, the result is."""
    x, attributes = node.input[0], attributes_of(node)
    if not graph.elem_type(x) or graph.shape(x) is None:
        return None
    build = NodeBuilder(graph, node)
    norm = build.reduce(f"ReduceL{attributes.get('p', 2)}", x, [attributes.get("axis", -1)])
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(x))
    smallest = build.constant(ml_dtypes.finfo(dtype).tiny, dtype)
    build.add("Div", x, build.add("Max", norm, smallest), output=node.output[0])
    return build.nodes


@rewrites("GlobalLpPool")
def global_lp_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A reduction, for p of 1 and 2."""
    shape, p = graph.shape(node.input[0]), attributes_of(node).get("p", 2)
    if shape is None or p not in (1, 2):
        return None
    build = NodeBuilder(graph, node)
    build.reduce(f"ReduceL{p}", node.input[0], range(2, len(shape)), output=node.output[0])
    return build.nodes
