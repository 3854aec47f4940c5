"""Operators on features (domain ai.onnx.ml) of numbers, as standard ones.

ArrayFeatureExtractor(x, places)    ->    Gather(x, places, axis=-1)
Binarizer(x)                        ->    Cast(Greater(x, threshold))
Scaler(x)                           ->    Mul(Sub(x, offset), scale), in float32
LabelEncoder(x)                     ->    Gather(values, the first place where x equals the key)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape
from .registry import rewrites

DOMAIN = "ai.onnx.ml"


@rewrites("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Elements of the last axis; of a vector, as a matrix of one row."""
    x, places = node.input
    shape, count = known_shape(graph, node, x), known_shape(graph, node, places)
    build = NodeBuilder(graph, node)
    flat = build.reshape(places, (int(np.prod(count)),))
    if len(shape) == 1:
        x = build.reshape(x, (1, *shape))
    build.add("Gather", x, flat, output=node.output[0], axis=max(1, len(shape) - 1))
    return build.nodes


@rewrites("Binarizer", domain=DOMAIN)
def binarizer(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """1 where an element exceeds the threshold, else 0."""
    build, x = NodeBuilder(graph, node), node.input[0]
    threshold = build.number(x, attributes_of(node).get("threshold", 0.0))
    larger = build.add("Greater", x, threshold)
    build.add("Cast", larger, output=node.output[0], to=graph.elem_type(x))
    return build.nodes


@rewrites("Scaler", domain=DOMAIN)
def scaler(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Numbers of the last axis' elements, or one for all."""
    build, attributes = NodeBuilder(graph, node), attributes_of(node)
    width = known_shape(graph, node, node.input[0])[-1]
    offset, scale = (
        np.array(attributes.get(name, [default]), np.float32)
        for name, default in (("offset", 0.0), ("scale", 1.0))
    )
    for name, numbers in (("offset", offset), ("scale", scale)):
        if numbers.size not in (1, width):
            raise ValueError(f"{name} has {numbers.size} elements for {width} features")
    x = build.add("Cast", node.input[0], to=TensorProto.FLOAT)
    moved = build.add("Sub", x, build.constant(offset))
    build.add("Mul", moved, build.constant(scale), output=node.output[0])
    return build.nodes


@rewrites("LabelEncoder", domain=DOMAIN)
def label_encoder(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The value of the key that is met, or the default; NaN meets NaN."""
    build, x, attributes = NodeBuilder(graph, node), node.input[0], attributes_of(node)
    keys, _ = _numbers(node, attributes, "keys")
    values, made = _numbers(node, attributes, "values")
    if len(keys) != len(values):
        raise ValueError(f"there are {len(keys)} keys and {len(values)} values")
    given = attributes.get(f"default_{made.removesuffix('s')}", _DEFAULTS[made])
    if isinstance(given, TensorProto):
        given = numpy_helper.to_array(given).item()
    shape = known_shape(graph, node, x)
    wide = build.reshape(x, (*shape, 1))
    known = build.constant(keys)
    met = build.add("Equal", wide, known)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        absent = build.constant(np.isnan(keys))
        met = build.add("Or", met, build.add("And", build.add("IsNaN", wide), absent))
    # Behind the keys a place that is always met.
    last = build.constant(np.ones((*shape, 1), np.int32))
    hits = build.add("Concat", build.add("Cast", met, to=TensorProto.INT32), last, axis=-1)
    place = build.add("ArgMax", hits, axis=len(shape), keepdims=0)
    table = np.append(values, np.array(given, values.dtype))
    build.add("Gather", build.constant(table), place, output=node.output[0], axis=0)
    return build.nodes


_DEFAULTS: dict[str, Any] = {"floats": 0.0, "int64s": -1, "tensor": 0}
_DTYPES = {"floats": np.float32, "int64s": np.int64}


def _numbers(node: onnx.NodeProto, attributes: dict[str, Any], role: str) -> tuple[np.ndarray, str]:
    """The keys or values of a LabelEncoder, and in which kind of attribute they are."""
    for kind in _DEFAULTS:
        given = attributes.get(f"{role}_{kind}")
        if given is None:
            continue
        if isinstance(given, TensorProto) and given.data_type != TensorProto.STRING:
            return numpy_helper.to_array(given).reshape(-1), kind
        if not isinstance(given, TensorProto):
            return np.array(given, _DTYPES[kind]), kind
    raise UnsupportedOperatorError(f"{describe(node)}: {role} that are no numbers")
