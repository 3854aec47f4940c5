"""Gemm without attributes: factors and transposes go into constants where there are some.

Gemm(a, W, c, alpha=2, beta=0.5, transB=1)    ->    Gemm(a, constant 2*W^T, constant c/2)

What is not constant is written out as Transpose and Mul. TVM's importer would write
permute_dims and multiply at run time for all of it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of, optional_input
from .registry import rewrites


@rewrites("Gemm")
def gemm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Applies alpha to b, beta to c and the transposes; None if there is nothing to apply."""
    attributes = attributes_of(node)
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    if not node.attribute or not graph.elem_type(node.input[0]):
        return None
    build = NodeBuilder(graph, node)
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0]))

    def scaled(name: str, factor: float) -> str:
        return build.add("Mul", name, build.constant(np.array(factor, dtype)))

    a, b, c = node.input[0], node.input[1], optional_input(node, 2)
    if attributes.get("transA"):
        a = build.add("Transpose", a, perm=[1, 0])
    if attributes.get("transB"):
        b = build.add("Transpose", b, perm=[1, 0])
    if alpha != 1.0 and node.input[1] in graph.constants:
        b = scaled(b, alpha)
    elif alpha != 1.0:
        a = scaled(a, alpha)
    if c and beta == 0.0:
        c = ""
    elif c and beta != 1.0:
        c = scaled(c, beta)
    build.add("Gemm", *((a, b, c) if c else (a, b)), output=node.output[0])
    return build.nodes
