"""ONNX Runtime's fused activations in standard operators.

Gelu(x)           ->  Gelu(x)                            (the standard one has the same meaning)
BiasGelu(x, b)    ->  Gelu(Add(x, b))
FastGelu(x, b)    ->  Gelu(Add(x, b), approximate=tanh)
QuickGelu(x, a)   ->  Mul(x, Sigmoid(Mul(x, a)))
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .registry import rewrites


@rewrites("Gelu", "BiasGelu", "FastGelu", domain="com.microsoft")
def contrib_gelu(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The standard Gelu, after the bias."""
    build = NodeBuilder(graph, node)
    value, bias = node.input[0], optional_input(node, 1)
    if bias:
        value = build.add("Add", value, bias)
    form = "tanh" if node.op_type == "FastGelu" else "none"
    build.add("Gelu", value, output=node.output[0], approximate=form)
    return build.nodes


@rewrites("QuickGelu", domain="com.microsoft")
def quick_gelu(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """x * sigmoid(alpha * x)."""
    build = NodeBuilder(graph, node)
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0]) or 1)
    # The default is ONNX Runtime's.
    alpha = build.constant(np.array(attributes_of(node).get("alpha", 1.702), dtype))
    gate = build.add("Sigmoid", build.add("Mul", node.input[0], alpha))
    build.add("Mul", node.input[0], gate, output=node.output[0])
    return build.nodes
