"""Forms of LayerNormalization that its converter does not know.

LayerNormalization(x, w, b)    ->  (y, mean, deviation)
    y: LayerNormalization(x, w, b)
    mean: m = ReduceMean(x)
    deviation: Reciprocal(Sqrt(ReduceMean((x - m) * (x - m)) + epsilon))
LayerNormalization(x, w) where w does not have the shape of what is normalised
    ->  LayerNormalization(x, 1, 0) * w
LayerNormalization(x: f64, w)  ->  (x - mean) * deviation * w

Statistics are computed beside the normalisation, which stays one kernel.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..graph import Graph
from ..node_builder import Extent, NodeBuilder, attributes_of, optional_input
from ..node_extents import extents_of
from .registry import rewrites

_EPSILON = 1e-5
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rewrites("LayerNormalization")
def layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Statistics apart, factors of any shape, and float64."""
    x, elem_type = node.input[0], graph.elem_type(node.input[0])
    has_statistics, is_double = any(node.output[1:]), elem_type == TensorProto.DOUBLE
    build, dims = NodeBuilder(graph, node), graph.dims(x)
    if dims is None and not has_statistics and not is_double:
        return None
    shape = extents_of(build, x)
    first = attributes_of(node).get("axis", -1) % len(shape)
    plain = all(_fits(graph, name, shape[first:]) for name in node.input[1:] if name)
    if plain and not has_statistics and not is_double:
        return None
    if has_statistics or is_double:
        normalized = _statistics(build, list(range(first, len(shape))))
    if is_double:
        _scale(build, normalized, node.input[1], optional_input(node, 2), node.output[0])
    elif plain:
        _normalize(build, x, list(node.input[1:]), node.output[0])
    else:
        _scale_apart(build, shape[first:])
    return build.nodes


def _fits(graph: Graph, name: str, shape: tuple[Extent, ...]) -> bool:
    """Whether a factor has the shape of what is normalised, as far as that is known."""
    dims = graph.dims(name)
    if dims is None or len(dims) != len(shape):
        return dims is None
    return not any(isinstance(x, int) and dim != x for dim, x in zip(dims, shape, strict=True))


def _normalize(build: NodeBuilder, value: str, parameters: list[str], output: str = "") -> str:
    given = attributes_of(build.source)
    attributes = {"axis": given.get("axis", -1), "epsilon": given.get("epsilon", _EPSILON)}
    return build.add("LayerNormalization", value, *parameters, output=output, **attributes)


def _scale(build: NodeBuilder, value: str, scale: str, bias: str, output: str = "") -> str:
    """By a factor and a bias as they broadcast."""
    if not bias:
        return build.add("Mul", value, scale, output=output)
    return build.add("Add", build.add("Mul", value, scale), bias, output=output)


def _scale_apart(build: NodeBuilder, normalized: tuple[Extent, ...]) -> None:
    """Normalised in float32, scaled and then rounded."""
    node, elem_type = build.source, build.graph.elem_type(build.source.input[0])
    values, output = [*node.input[:2], optional_input(node, 2)], node.output[0]
    if elem_type in _NARROW:
        values = [build.add("Cast", x, to=TensorProto.FLOAT) if x else "" for x in values]
        output = ""
    units = [
        build.add("Expand", build.constant(number, np.float32), build.shape(normalized))
        for number in (1, 0)
    ]
    scaled = _scale(build, _normalize(build, values[0], units), values[1], values[2], output)
    if elem_type in _NARROW:
        build.add("Cast", scaled, output=node.output[0], to=elem_type)


def _statistics(build: NodeBuilder, axes: list[int]) -> str:
    """Mean and one over the deviation, as far as they are outputs; returns what is normalised."""
    node, attributes = build.source, attributes_of(build.source)
    is_double = build.graph.elem_type(node.input[0]) == TensorProto.DOUBLE
    computed = TensorProto.DOUBLE if is_double else TensorProto.FLOAT
    wide = build.add("Cast", node.input[0], to=computed)
    mean = build.reduce("ReduceMean", wide, axes)
    centred = build.add("Sub", wide, mean)
    variance = build.reduce("ReduceMean", build.add("Mul", centred, centred), axes)
    dtype = helper.tensor_dtype_to_np_dtype(computed)
    epsilon = build.constant(attributes.get("epsilon", _EPSILON), dtype)
    deviation = build.add("Sqrt", build.add("Add", variance, epsilon))
    inverse = build.add("Reciprocal", deviation)
    for value, output in zip((mean, inverse), node.output[1:], strict=False):
        if output:
            build.add("Cast", value, output=output, to=attributes.get("stash_type", 1))
    return build.add("Mul", centred, inverse)
