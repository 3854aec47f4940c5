"""BatchNormalization, which is one multiplication and one addition per channel.

Before

    y = BatchNormalization(x, gamma, beta, mean, variance)

After

    y = Add(Mul(x, scale), shift)
        scale = gamma / sqrt(variance + epsilon),  shift = beta - mean * scale

Constant statistics are combined in float64 and rounded once; the Relax pass `fold_factors` carries
on from here. In training mode the statistics are those of x itself (batch_statistics.py). Where the
inputs have different types, as from opset 15 on, everything is computed in the widest.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape
from .batch_statistics import normalize_by_batch
from .registry import rewrites


@rewrites("BatchNormalization")
def batch_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Mul and Add, if the statistics are constant or the batch's own and the rank is known."""
    attributes = attributes_of(node)
    shape = graph.dims(node.input[0])
    training = attributes.get("training_mode", 0) == 1
    if not training and any(node.output[1:]):
        raise UnsupportedOperatorError(
            f"{describe(node)} is in the training mode of an old opset; export it for inference"
        )
    plain = len(node.input) == 5 and attributes.get("spatial", 1) == 1
    if not plain or shape is None or len(shape) < 2:
        if training:
            raise UnsupportedOperatorError(
                f"{describe(node)} is in training mode, of {shape} with {len(node.input)} inputs; "
                "export it for inference"
            )
        return None
    build = NodeBuilder(graph, node)
    if training:
        normalize_by_batch(build, node, known_shape(graph, node, node.input[0]))
        return build.nodes
    arrays = [graph.constants.get(name) for name in node.input[1:]]
    known = [array for array in arrays if array is not None and array.shape == (shape[1],)]
    if len(known) != len(arrays):
        return None
    gamma, beta, mean, variance = (array.astype(np.float64) for array in known)
    with np.errstate(all="ignore"):  # a bad variance gives NaN, as it would at run time
        scale = gamma / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    shift = beta - mean * scale
    channels = (-1, *(1 for _ in shape[2:]))
    types = [helper.tensor_dtype_to_np_dtype(graph.elem_type(name)) for name in node.input]
    widest = functools.reduce(np.promote_types, types)
    mixed = widest != types[0]
    code = helper.np_dtype_to_tensor_dtype(widest)
    x = build.add("Cast", node.input[0], to=code) if mixed else node.input[0]
    product = build.add("Mul", x, build.constant(scale.reshape(channels), widest))
    output = "" if mixed else node.output[0]
    offset = build.constant(shift.reshape(channels), widest)
    total = build.add("Add", product, offset, output=output)
    if mixed:
        build.add("Cast", total, output=node.output[0], to=graph.elem_type(node.input[0]))
    return build.nodes
