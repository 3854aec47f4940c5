"""Operators of training, where a model is used for inference."""

from __future__ import annotations

import onnx

from microkernels.base.errors import UnsupportedOperatorError

from ..graph.graph import Graph, describe
from ..graph.node_builder import NodeBuilder, optional_input
from ..graph.parameters import require_value
from .registry import rewrites

MASK_OF_BOOL = 10


@rewrites("Dropout")
def dropout(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Dropout that drops nothing, as of inference: the input, and a mask that keeps everything.

    Training mode is refused.

    Writes the mask, if it is asked for; refuses what may drop anything.
    """
    ratio, training = (graph.constants.get(optional_input(node, place)) for place in (1, 2))
    if training is None:
        require_value(describe(node), optional_input(node, 2), graph)
    trains = optional_input(node, 2) and (training is None or training.any())
    if trains and ratio is None:
        require_value(describe(node), optional_input(node, 1), graph)
    if trains and (ratio is None or ratio.any()):
        raise UnsupportedOperatorError(
            f"{describe(node)} is or may be in training mode; export it for inference"
        )
    if not any(node.output[1:]):
        return None
    x, mask = node.input[0], node.output[1]
    build = NodeBuilder(graph, node)
    one = build.constant(True) if graph.opset >= MASK_OF_BOOL else build.number(x, 1)
    build.add("Identity", x, output=node.output[0])
    build.add("Expand", one, build.add("Shape", x), output=mask)
    return build.nodes
