"""Per-channel constants after a convolution go into its weight and bias.

    Conv(x, W, b) -> Mul(., scale) -> Add(., shift)    ->    Conv(x, W * scale, b * scale + shift)

Only where the convolution's result has no other use, and the factors are constants of one value
per output channel (or one value for all).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from numpy.typing import NDArray

from .graph import Graph, captured_names, is_standard
from .node_builder import attributes_of, optional_input

_CONVOLUTIONS = ("Conv", "ConvTranspose")


def fold_into_conv(graph: Graph) -> None:
    """Folds in place; runs after propagation, which types every value."""
    uses = Counter(graph.outputs)
    for node in graph.nodes:
        uses.update(name for name in node.input if name)
        uses.update(captured_names(node))
    makers: dict[str, onnx.NodeProto] = {}
    kept = []
    for node in graph.nodes:
        convolution = _foldable(node, graph, makers, uses)
        if convolution is not None:
            _fold(node, convolution, graph)
            convolution.output[0] = node.output[0]
            makers[node.output[0]] = convolution
            continue
        if is_standard(node) and node.op_type in _CONVOLUTIONS:
            makers[node.output[0]] = node
        kept.append(node)
    graph.nodes = kept


def _operands(node: onnx.NodeProto, graph: Graph) -> tuple[str, str] | None:
    """The constant and the other operand."""
    if not is_standard(node) or node.op_type not in ("Mul", "Add") or len(node.input) != 2:
        return None
    left, right = node.input
    if (left in graph.constants) == (right in graph.constants):
        return None
    return (left, right) if left in graph.constants else (right, left)


def _foldable(
    node: onnx.NodeProto,
    graph: Graph,
    makers: dict[str, onnx.NodeProto],
    uses: Counter[str],
) -> onnx.NodeProto | None:
    """The convolution that `node` can be folded into."""
    operands = _operands(node, graph)
    if operands is None or operands[1] not in makers or uses[operands[1]] != 1:
        return None
    convolution = makers[operands[1]]
    weight, bias = convolution.input[1], optional_input(convolution, 2)
    if weight not in graph.constants or (bias and bias not in graph.constants):
        return None
    if graph.constants[weight].dtype.kind != "f":
        return None
    shape = graph.shape(operands[1])
    if bias and (shape is None or graph.shape(bias) != (shape[1],)):
        return None
    if shape is None or _per_channel(graph.constants[operands[0]], shape) is None:
        return None
    return convolution


def _per_channel(constant: NDArray, shape: tuple[int, ...]) -> NDArray | None:
    """The constant as one value per channel of an NC... tensor, or None if it is more than that."""
    if constant.size == 1 and constant.ndim <= len(shape):
        return np.broadcast_to(constant.reshape(()), (shape[1],))
    aligned = (1,) * (len(shape) - constant.ndim) + constant.shape
    if aligned != (1, shape[1], *(1 for _ in shape[2:])):
        return None
    return constant.reshape(-1)


def _fold(node: onnx.NodeProto, convolution: onnx.NodeProto, graph: Graph) -> None:
    operands = _operands(node, graph)
    shape = graph.shape(operands[1]) if operands else None
    assert operands is not None and shape is not None
    value = _per_channel(graph.constants[operands[0]], shape)
    assert value is not None
    weight = graph.constants[convolution.input[1]]
    name = optional_input(convolution, 2)
    bias = graph.constants[name] if name else np.zeros(shape[1], weight.dtype)
    if node.op_type == "Add":
        bias = bias + value
    else:
        bias = bias * value
        convolution.input[1] = graph.fresh(f"{convolution.name}/weight")
        graph.add_constant(convolution.input[1], _scale(weight, value, convolution))
    while len(convolution.input) < 3:
        convolution.input.append("")
    convolution.input[2] = graph.fresh(f"{convolution.name}/bias")
    graph.add_constant(convolution.input[2], bias.astype(weight.dtype))


def _scale(weight: NDArray, value: NDArray, convolution: onnx.NodeProto) -> NDArray:
    spatial = (1,) * (weight.ndim - 2)
    if convolution.op_type == "Conv":  # [out, in / groups, ...]
        return weight * value.reshape(-1, 1, *spatial)
    groups = attributes_of(convolution).get("group", 1)  # [in, out / groups, ...]
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    return (parts * value.reshape(groups, 1, -1, *spatial)).reshape(weight.shape)
