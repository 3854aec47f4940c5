"""Per-channel constants after a product go into its weight and bias.

    Conv(x, W, b) -> Mul(., scale) -> Add(., shift)    ->    Conv(x, W * scale, b * scale + shift)

Likewise ConvTranspose and Gemm, and the factors after a MatMul. Only where the product's result has
no other use, and the factors are constants of one value per output channel (or one value for all).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx

from .channel_factors import Affine, affine
from .graph import Graph, captured_names, is_standard
from .node_builder import attributes_of, optional_input

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PRODUCTS = ("Gemm", "MatMul")


def fold_into_conv(graph: Graph) -> None:
    """Folds in place; runs after propagation, which types every value."""
    uses = count_uses(graph)
    makers: dict[str, onnx.NodeProto] = {}
    kept = []
    for node in graph.nodes:
        product = _producer(node, makers, uses)
        found = None if product is None else _foldable(node, product, graph, uses)
        if product is not None and found is not None:
            _fold(product, found, graph)
            product.output[0] = node.output[0]
            makers[node.output[0]] = product
            continue
        if is_standard(node) and node.op_type in (*_CONVOLUTIONS, *_PRODUCTS):
            makers[node.output[0]] = node
        kept.append(node)
    graph.nodes = kept


def count_uses(graph: Graph) -> Counter[str]:
    """How often every value is read."""
    uses = Counter(graph.outputs)
    for node in graph.nodes:
        uses.update(name for name in node.input if name)
        uses.update(captured_names(node))
    return uses


def _producer(
    node: onnx.NodeProto, makers: dict[str, onnx.NodeProto], uses: Counter[str]
) -> onnx.NodeProto | None:
    """The product whose result `node` alone reads."""
    for name in node.input:
        if name in makers and uses[name] == 1:
            return makers[name]
    return None


def _foldable(
    node: onnx.NodeProto, product: onnx.NodeProto, graph: Graph, uses: Counter[str]
) -> Affine | None:
    """What `node` does, if it can be folded into `product`."""
    convolution = product.op_type in _CONVOLUTIONS
    found = affine(node, graph, 1 if convolution else -1)
    weight, bias = graph.constants.get(product.input[1]), optional_input(product, 2)
    if found is None or weight is None or weight.dtype.kind != "f":
        return None
    if bias and (bias not in graph.constants or graph.constants[bias].shape != found.term.shape):
        return None
    if convolution:
        return found
    # A weight used elsewhere, such as an embedding, is not to be there twice.
    if weight.ndim != 2 or uses[product.input[1]] > 1 or product.attribute:
        return None
    return None if product.op_type == "MatMul" and found.term.any() else found


def _fold(product: onnx.NodeProto, found: Affine, graph: Graph) -> None:
    weight = graph.constants[product.input[1]]
    name = optional_input(product, 2)
    bias = graph.constants[name].astype(np.float64) if name else np.zeros(len(found.term))
    if (found.factor != 1).any():
        factor = found.factor.astype(weight.dtype)
        product.input[1] = graph.fresh(f"{product.name}/weight")
        graph.add_constant(product.input[1], _scale(weight, factor, product))
    if product.op_type == "MatMul":
        return
    while len(product.input) < 3:
        product.input.append("")
    product.input[2] = graph.fresh(f"{product.name}/bias")
    graph.add_constant(product.input[2], (bias * found.factor + found.term).astype(weight.dtype))


def _scale(weight: np.ndarray, value: np.ndarray, product: onnx.NodeProto) -> np.ndarray:
    if product.op_type in _PRODUCTS:  # [in, out]
        return weight * value
    spatial = (1,) * (weight.ndim - 2)
    if product.op_type == "Conv":  # [out, in / groups, ...]
        return weight * value.reshape(-1, 1, *spatial)
    groups = attributes_of(product).get("group", 1)  # [in, out / groups, ...]
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    return (parts * value.reshape(groups, 1, -1, *spatial)).reshape(weight.shape)
