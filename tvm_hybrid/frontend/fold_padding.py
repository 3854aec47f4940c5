"""Zero padding before a convolution becomes the convolution's own.

    Conv(Pad(x, [0, 0, 0, 0, 0, 0, 1, 1]), W)    ->    Conv(x, W, pads=[0, 0, 1, 1])

Exporters write such a Pad where the padding is uneven (TensorFlow's SAME with a stride).
"""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import helper

from .graph import Graph, captured_names, drop_dead_nodes, is_standard
from .node_builder import attributes_of, optional_input


def fold_padding(graph: Graph) -> None:
    """Folds in place; runs after propagation, which types every value."""
    uses = Counter(graph.outputs)
    for node in graph.nodes:
        uses.update(name for name in node.input if name)
        uses.update(captured_names(node))
    makers: dict[str, onnx.NodeProto] = {}
    for node in graph.nodes:
        if not is_standard(node):
            continue
        if node.op_type == "Pad":
            makers[node.output[0]] = node
        elif node.op_type == "Conv" and uses[node.input[0]] == 1 and node.input[0] in makers:
            _fold(makers[node.input[0]], node, graph)
    drop_dead_nodes(graph)


def _fold(pad: onnx.NodeProto, convolution: onnx.NodeProto, graph: Graph) -> None:
    before_and_after = _zero_padding(pad, graph)
    attributes = attributes_of(convolution)
    if before_and_after is None or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return
    rank = len(before_and_after) // 2
    edges = [before_and_after[2:rank], before_and_after[rank + 2 :]]
    outer = [*before_and_after[:2], *before_and_after[rank : rank + 2]]
    if any(outer) or min(before_and_after) < 0:  # channels are padded, or something is cropped
        return
    added = [*edges[0], *edges[1]]
    own = attributes.get("pads") or [0] * len(added)
    kept = [item for item in convolution.attribute if item.name not in ("pads", "auto_pad")]
    total = [int(a) + int(b) for a, b in zip(own, added, strict=True)]
    pads = helper.make_attribute("pads", total)
    copies = [onnx.AttributeProto.FromString(item.SerializeToString()) for item in (*kept, pads)]
    del convolution.attribute[:]
    convolution.attribute.extend(copies)
    convolution.input[0] = pad.input[0]


def _zero_padding(pad: onnx.NodeProto, graph: Graph) -> list[int] | None:
    """What a Pad adds before and after every axis, if it is constant and adds zeros."""
    attributes = attributes_of(pad)
    if attributes.get("mode", "constant") != "constant" or attributes.get("value", 0.0) != 0.0:
        return None
    value, axes = optional_input(pad, 2), optional_input(pad, 3)
    if axes or (value and (value not in graph.constants or graph.constants[value].any())):
        return None
    amounts = optional_input(pad, 1)
    if amounts:
        array = graph.constants.get(amounts)
        return None if array is None else [int(item) for item in array]
    given = attributes.get("pads")
    return None if given is None else [int(item) for item in given]
