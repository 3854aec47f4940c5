"""ONNX Runtime's FusedMatMul in standard operators.

FusedMatMul(a, b, transA, transB, alpha)    ->    Mul(MatMul(a or Transpose(a), ...), alpha)
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites


@rewrites("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
def fused_matmul(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the transposes and the factor out."""
    attributes = attributes_of(node)
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        raise UnsupportedOperatorError(f"{describe(node)}: transBatchA/transBatchB is unsupported")
    build = NodeBuilder(graph, node)
    operands = []
    for name, flag in zip(node.input, ("transA", "transB"), strict=True):
        operands.append(_transposed(build, node, name) if attributes.get(flag) else name)
    alpha = attributes.get("alpha", 1.0)
    if alpha == 1.0:
        build.add("MatMul", *operands, output=node.output[0])
    else:
        dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0]) or 1)
        product = build.add("MatMul", *operands)
        build.add("Mul", product, build.constant(np.array(alpha, dtype)), output=node.output[0])
    return build.nodes


def _transposed(build: NodeBuilder, node: onnx.NodeProto, name: str) -> str:
    shape = build.graph.shape(name)
    if shape is None:
        raise UnsupportedOperatorError(f"{describe(node)}: the rank of input {name!r} is unknown")
    if len(shape) < 2:  # ONNX Runtime ignores the flag for vectors
        return name
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return build.add("Transpose", name, perm=order)
