"""Per-channel constants before a product go into its weight and bias.

    Relu -> Mul(., scale) -> Add(., shift) -> Conv(., W, b)
                                  ->    Relu -> Conv(., W * scale, b + sum over inputs of W * shift)

Likewise Gemm, and the factors before a MatMul. A shift cannot move
through a convolution with padding, because padding is zero after the shift. fold_into_conv.py runs
first and takes constants after a product.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx

from .channel_factors import Affine, affine
from .fold_into_conv import count_uses
from .graph import Graph, drop_dead_nodes, is_standard
from .node_builder import attributes_of, optional_input

_PRODUCTS = ("Conv", "Gemm", "MatMul")


def fold_before_conv(graph: Graph) -> None:
    """Folds in place; runs after propagation, which types every value."""
    uses = count_uses(graph)
    makers = {name: node for node in graph.nodes for name in node.output if name}
    for node in graph.nodes:
        if is_standard(node) and node.op_type in _PRODUCTS:
            while (found := _foldable(node, graph, makers, uses)) is not None:
                _fold(node, found, graph)
                node.input[0] = found.x
    drop_dead_nodes(graph)


def _foldable(
    product: onnx.NodeProto, graph: Graph, makers: dict[str, onnx.NodeProto], uses: Counter[str]
) -> Affine | None:
    """What is done to the product's first input, if the product can do it."""
    maker = makers.get(product.input[0])
    weight, bias = graph.constants.get(product.input[1]), optional_input(product, 2)
    if maker is None or uses[product.input[0]] != 1 or weight is None:
        return None
    if weight.dtype not in (np.float32, np.float64):  # products of half precision could overflow
        return None
    convolution = product.op_type == "Conv"
    found = affine(maker, graph, 1 if convolution else -1)
    if found is None or graph.dims(found.x) != graph.dims(product.input[0]):
        return None
    if _is_gated(makers.get(found.x), graph):
        return None
    if not convolution and (weight.ndim != 2 or product.attribute or uses[product.input[1]] > 1):
        return None
    if bias and (bias not in graph.constants or graph.constants[bias].ndim != 1):
        return None
    if found.term.any() and (product.op_type == "MatMul" or _pads(product)):
        return None
    return found


def _is_gated(node: onnx.NodeProto | None, graph: Graph) -> bool:
    """Whether a node multiplies or divides two values that are no constants."""
    if node is None or node.op_type not in ("Mul", "Div"):
        return False
    return not any(name in graph.constants for name in node.input)


def _pads(convolution: onnx.NodeProto) -> bool:
    attributes = attributes_of(convolution)
    same = attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return same or any(attributes.get("pads") or ())


def _fold(product: onnx.NodeProto, found: Affine, graph: Graph) -> None:
    weight = graph.constants[product.input[1]]
    exact = weight.astype(np.float64)
    if found.term.any():
        added = _inputs(exact, found.term, product)
        added = (
            added.reshape(added.shape[0], -1).sum(1) if product.op_type == "Conv" else added.sum(0)
        )
        name = optional_input(product, 2)
        bias = added + graph.constants[name] if name else added
        while len(product.input) < 3:
            product.input.append("")
        product.input[2] = graph.fresh(f"{product.name}/bias")
        graph.add_constant(product.input[2], bias.astype(weight.dtype))
    if (found.factor != 1).any():
        product.input[1] = graph.fresh(f"{product.name}/weight")
        scaled = _inputs(exact, found.factor, product)
        graph.add_constant(product.input[1], scaled.astype(weight.dtype))


def _inputs(weight: np.ndarray, value: np.ndarray, product: onnx.NodeProto) -> np.ndarray:
    """The weight times one value per input channel."""
    if product.op_type != "Conv":  # [in, out]
        return weight * value[:, None]
    groups = attributes_of(product).get("group", 1)  # [out, in / groups, ...]
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    spatial = (1,) * (weight.ndim - 2)
    return (parts * value.reshape(groups, 1, -1, *spatial)).reshape(weight.shape)
