"""ONNX Runtime's fused normalisations in standard operators.

SkipLayerNormalization(x, skip, gamma, beta, bias)     ->  LayerNormalization(x + skip + bias, ...)
SimplifiedLayerNormalization(x, gamma)                 ->  RMSNormalization(x, gamma)
SkipSimplifiedLayerNormalization(x, skip, gamma, bias) ->  RMSNormalization(x + skip + bias, gamma)
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .registry import rewrites


@rewrites("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain="com.microsoft")
def skip_layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Adds first; the fourth output is the sum."""
    _refuse_statistics(node, (1, 2))
    simplified = node.op_type == "SkipSimplifiedLayerNormalization"
    build = NodeBuilder(graph, node)
    gamma, beta = node.input[2], "" if simplified else optional_input(node, 3)
    bias = optional_input(node, 3 if simplified else 4)
    total = node.output[3] if len(node.output) > 3 else ""
    if bias:
        partial = build.add("Add", node.input[0], node.input[1])
        value = build.add("Add", partial, bias, output=total)
    else:
        value = build.add("Add", node.input[0], node.input[1], output=total)
    _normalize(build, value, gamma, beta, simplified)
    return build.nodes


@rewrites("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """ONNX Runtime files this one under the standard domain."""
    _refuse_statistics(node, (1,))
    build = NodeBuilder(graph, node)
    _normalize(build, node.input[0], node.input[1], "", True)
    return build.nodes


def _normalize(build: NodeBuilder, value: str, gamma: str, beta: str, simplified: bool) -> None:
    attributes = attributes_of(build.source)
    common = {
        "axis": attributes.get("axis", -1),
        "epsilon": attributes.get("epsilon", 1e-5 if simplified else 1e-12),
    }
    output = build.source.output[0]
    if simplified:
        build.add("RMSNormalization", value, gamma, output=output, **common)
        return
    if not beta:  # TVM's importer wants one
        dtype = helper.tensor_dtype_to_np_dtype(build.graph.elem_type(gamma) or 1)
        beta = build.constant(np.zeros(build.graph.shape(gamma) or (), dtype))
    build.add("LayerNormalization", value, gamma, beta, output=output, **common)


def _refuse_statistics(node: onnx.NodeProto, positions: tuple[int, ...]) -> None:
    for position in positions:
        if position < len(node.output) and node.output[position]:
            raise UnsupportedOperatorError(
                f"{describe(node)}: its output {node.output[position]!r} (mean or deviation) is "
                "unsupported"
            )
