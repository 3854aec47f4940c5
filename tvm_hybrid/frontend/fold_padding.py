"""Merges padding before a convolution or a pool into its own padding.

    Conv(Pad(x, [0, 0, 0, 0, 0, 0, 1, 1]), W)    ->    Conv(x, W, pads=[0, 0, 1, 1])
    AveragePool(Pad(x))                          ->    AveragePool(x, pads=..., count_include_pad=1)
    MaxPool(Pad(x))                              ->    MaxPool(x, pads=...)

Exporters write such a Pad where the padding is uneven (TensorFlow's SAME with a stride). A MaxPool
ignores what it pads itself: the Pad must add -inf, or zeros to values that are not negative where
every window has one of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from .graph import Graph, drop_dead_nodes, is_standard
from .node_builder import attributes_of, constant_or_attribute, optional_input, with_attributes

_NOT_NEGATIVE = ("Relu", "Sigmoid", "Abs", "Exp", "Sqrt", "Softplus", "Softmax")
_POOLS = ("MaxPool", "AveragePool")


def fold_padding(graph: Graph) -> None:
    """Folds in place; runs after propagation, which types every value."""
    makers: dict[str, onnx.NodeProto] = {}
    for node in graph.nodes:
        if not is_standard(node):
            continue
        makers.update((name, node) for name in node.output if name)
        pad = makers.get(node.input[0]) if node.input else None
        if pad is not None and pad.op_type == "Pad" and node.op_type in ("Conv", *_POOLS):
            _fold(pad, node, graph, makers)
    drop_dead_nodes(graph)


def _fold(
    pad: onnx.NodeProto, node: onnx.NodeProto, graph: Graph, makers: dict[str, onnx.NodeProto]
) -> None:
    amounts = _amounts(pad, graph)
    attributes = attributes_of(node)
    if amounts is None or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return
    rank = len(amounts) // 2
    edges = [amounts[2:rank], amounts[rank + 2 :]]
    outer = [*amounts[:2], *amounts[rank : rank + 2]]
    if any(outer) or min(amounts) < 0:  # channels are padded, or something is cropped
        return
    added = [*edges[0], *edges[1]]
    own = attributes.get("pads") or [0] * len(added)
    changed: dict[str, Any] = {"pads": [int(a) + int(b) for a, b in zip(own, added, strict=True)]}
    if node.op_type in _POOLS:
        kernel = attributes["kernel_shape"]
        whole = all(number < size for number, size in zip(changed["pads"], kernel * 2, strict=True))
        if attributes.get("ceil_mode") or set(attributes.get("dilations", [1])) != {1} or not whole:
            return
    if node.op_type == "MaxPool":
        if not _is_ignored(pad, graph, makers):
            return
    elif _value(pad, graph) != 0.0:
        return
    if node.op_type == "AveragePool":
        if any(own) and not attributes.get("count_include_pad"):
            return
        changed["count_include_pad"] = 1
    node.CopyFrom(with_attributes(node, **changed, auto_pad=None))
    node.input[0] = pad.input[0]


def _is_ignored(pad: onnx.NodeProto, graph: Graph, makers: dict[str, onnx.NodeProto]) -> bool:
    """Whether no maximum can be what a Pad adds."""
    value = _value(pad, graph)
    if value == -np.inf:
        return True
    maker = makers.get(pad.input[0])
    if value != 0.0 or maker is None:
        return False
    if maker.op_type == "Clip":
        low = constant_or_attribute(maker, graph, 1, "min")
        return low is not None and bool(np.all(np.asarray(low) >= 0))
    return maker.op_type in _NOT_NEGATIVE


def _value(pad: onnx.NodeProto, graph: Graph) -> float | None:
    """What a Pad adds, if it is one constant."""
    attributes = attributes_of(pad)
    if attributes.get("mode", "constant") != "constant":
        return None
    name = optional_input(pad, 2)
    if not name:
        return float(attributes.get("value", 0.0))
    array = graph.constants.get(name)
    return None if array is None else float(array.reshape(-1)[0]) if array.size else 0.0


def _amounts(pad: onnx.NodeProto, graph: Graph) -> list[int] | None:
    """How much a Pad adds before every axis, then after, if that is constant."""
    shape, given = graph.dims(pad.input[0]), constant_or_attribute(pad, graph, 1, "pads")
    axes = optional_input(pad, 3)
    if given is None or shape is None or (axes and axes not in graph.constants):
        return None
    places = graph.constants[axes] % len(shape) if axes else np.arange(len(shape))
    amounts = np.zeros((2, len(shape)), np.int64)
    amounts[:, places] = np.asarray(given, np.int64).reshape(2, -1)
    return [int(number) for number in amounts.reshape(-1)]
