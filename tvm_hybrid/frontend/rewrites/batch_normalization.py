"""BatchNormalization of inference, which is one multiplication and one addition per channel.

BatchNormalization(x, gamma, beta, mean, variance)    ->    Add(Mul(x, scale), shift)
    scale = gamma / sqrt(variance + epsilon),  shift = beta - mean * scale

The statistics are combined in float64 and rounded once. fold_into_conv.py carries on from here.
"""

from __future__ import annotations

import numpy as np
import onnx

from microkernels.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites


@rewrites("BatchNormalization")
def batch_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Mul and Add, if the statistics are constant and the rank is known."""
    attributes = attributes_of(node)
    shape = graph.shape(node.input[0])
    if attributes.get("training_mode") or any(node.output[1:]):
        raise UnsupportedOperatorError(
            f"{describe(node)} is in training mode; export it for inference"
        )
    if len(node.input) != 5 or any(name not in graph.constants for name in node.input[1:]):
        return None
    if shape is None or len(shape) < 2 or attributes.get("spatial", 1) != 1:
        return None
    arrays = [graph.constants[name] for name in node.input[1:]]
    if any(array.shape != (shape[1],) for array in arrays):
        return None
    gamma, beta, mean, variance = (array.astype(np.float64) for array in arrays)
    with np.errstate(all="ignore"):  # a bad variance gives NaN, as it would at run time
        scale = gamma / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    shift = beta - mean * scale
    build = NodeBuilder(graph, node)
    channels = (-1, *(1 for _ in shape[2:]))
    dtype = arrays[0].dtype
    product = build.add("Mul", node.input[0], build.constant(scale.reshape(channels), dtype))
    build.add("Add", product, build.constant(shift.reshape(channels), dtype), output=node.output[0])
    return build.nodes
