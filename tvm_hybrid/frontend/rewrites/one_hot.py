"""OneHot as a comparison with all classes.

OneHot(indices, depth, [off, on], axis)
    ->  Where(Equal(Unsqueeze(indices, axis), [0, 1, ..., depth - 1]), on, off)

Negative indices count from the end; what is outside is equal to no class.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape
from .registry import rewrites

MAX_DEPTH = 2**31 - 1


@rewrites("OneHot")
def one_hot(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Any types of indices, depth and values; the depth must be known."""
    indices, given, values = node.input
    depth = graph.constants.get(given)
    if depth is None:
        return None
    if depth.size != 1 or not 0 <= depth.item() <= MAX_DEPTH:
        raise ModelError(f"{describe(node)}: its depth is {depth.tolist()}")
    classes, shape = int(depth.item()), known_shape(graph, node, indices)
    axis, rank = attributes_of(node).get("axis", -1), len(shape) + 1
    if not -rank <= axis < rank:
        raise ModelError(f"{describe(node)}: axis {axis} of a result of rank {rank}")
    axis %= rank
    build = NodeBuilder(graph, node)
    index = build.add("Cast", indices, to=TensorProto.INT64)
    if helper.tensor_dtype_to_np_dtype(graph.elem_type(indices)).kind != "u":
        wrapped = build.add("Add", index, build.constant(classes, np.int64))
        negative = build.add("Less", index, build.constant(0, np.int64))
        index = build.add("Where", negative, wrapped, index)
    index = build.reshape(index, [*shape[:axis], 1, *shape[axis:]])
    every = np.arange(classes).reshape(-1, *(1 for _ in shape[axis:]))
    chosen = build.add("Equal", index, build.constant(every, np.int64))
    off, on = (build.take(values, position, 0) for position in (0, 1))
    build.add("Where", chosen, on, off, output=node.output[0])
    return build.nodes
