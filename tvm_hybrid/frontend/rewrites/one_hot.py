"""OneHot as a comparison with all classes.

OneHot(indices, depth, [off, on], axis)
    ->  Where(Equal(Unsqueeze(indices, axis), [0, 1, ..., depth - 1]), on, off)

Negative indices count from the end; what is outside is equal to no class. The depth may follow from
sizes, or be found in data: then a Range makes the classes. All sizes may be open.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import Extent, NodeBuilder, attributes_of
from ..node_extents import counted, element_of, extents_of
from .registry import rewrites

MAX_DEPTH = 2**31 - 1


@rewrites("OneHot")
def one_hot(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Any types of indices, depth and values."""
    indices, given, values = node.input
    depth = graph.constants.get(given)
    if depth is not None and (depth.size != 1 or not 0 <= depth.item() <= MAX_DEPTH):
        raise ModelError(f"{describe(node)}: its depth is {depth.tolist()}")
    build = NodeBuilder(graph, node)
    shape = extents_of(build, indices)
    axis, rank = attributes_of(node).get("axis", -1), len(shape) + 1
    if not -rank <= axis < rank:
        raise ModelError(f"{describe(node)}: axis {axis} of a result of rank {rank}")
    axis %= rank
    classes = _depth(build, given)
    index = build.add("Cast", indices, to=TensorProto.INT64)
    if helper.tensor_dtype_to_np_dtype(graph.elem_type(indices)).kind != "u":
        count = classes if isinstance(classes, str) else build.constant(classes, np.int64)
        wrapped = build.add("Add", index, count)
        negative = build.add("Less", index, build.constant(0, np.int64))
        index = build.add("Where", negative, wrapped, index)
    index = build.reshape(index, [*shape[:axis], 1, *shape[axis:]])
    every = _classes(build, classes, rank - 1 - axis)
    chosen = build.add("Equal", index, every)
    off, on = (build.take(values, position, 0) for position in (0, 1))
    build.add("Where", chosen, on, off, output=node.output[0])
    return build.nodes


def _depth(build: NodeBuilder, given: str) -> Extent:
    """How many classes there are; the program checks that what it finds is not below 0."""
    depth = element_of(build, given)
    if isinstance(depth, int):
        return depth
    return build.add("Shape", build.add("ConstantOfShape", depth))


def _classes(build: NodeBuilder, count: Extent, behind: int) -> str:
    """The numbers of all classes, with so many axes behind them."""
    if isinstance(count, int):
        every = np.arange(count).reshape(-1, *[1] * behind)
        return build.constant(every, np.int64)
    return build.reshape(counted(build, count), [count, *[1] * behind])
