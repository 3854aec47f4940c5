"""The operator `Recurrent` for all steps of a layer, behind one product of all inputs.

    LSTM(X [steps, batch, input], W, R, B, ...)
        ->  MatMul(X, W^T of all directions) + bias,
            Recurrent(part [steps, batch, directions * gates * hidden], R, ...)

Layers of 16 bits are computed in float32 and rounded at the end.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from tir_schedules.recurrent.problem import STATES

from ..graph import OWN_DOMAIN
from ..node_builder import attributes_of, optional_input
from ..node_extents import times
from .recurrent_layer import Recurrent, W

_B = 3
_STATES = {"hidden": 5, "memory": 6}
_PEEPHOLES = 7


def one_operator(layer: Recurrent) -> list[onnx.NodeProto]:
    """The nodes."""
    build, node, cell = layer.build, layer.node, layer.cell
    if not layer.hidden:
        return _nothing(layer)
    bias, apart = _biases(layer)
    recurrence = layer.recurrence()
    inputs = {"part": _part(layer, bias), "weight": recurrence.pop("weight")}
    for name, position in _STATES.items():
        if optional_input(node, position):
            inputs[name] = layer.widened(node.input[position])
    if apart:
        inputs["bias"] = apart
    if cell == "lstm" and optional_input(node, _PEEPHOLES):
        inputs["peepholes"] = layer.widened(node.input[_PEEPHOLES])
    if layer.lengths:
        inputs["lengths"] = build.add("Cast", layer.lengths, to=TensorProto.INT32)
    inputs |= recurrence
    states = [node.output[n] if n < len(node.output) else "" for n in range(1, 1 + STATES[cell])]
    outputs = [node.output[0], *(states if any(states) else [])]
    made = [(name and layer.is_narrow and build.graph.fresh(name)) or name for name in outputs]
    attributes = attributes_of(node)
    functions = layer.activations[: len(layer.activations) // layer.directions]
    build.add_many(
        "Recurrent",
        *inputs.values(),
        outputs=made,
        domain=OWN_DOMAIN,
        cell=cell,
        direction=attributes.get("direction", "forward"),
        activations=" ".join(each.text for each in functions),
        clip=attributes.get("clip", 0.0),
        coupled=attributes.get("input_forget", 0),
        finals=int(any(states)),
        given=" ".join(list(inputs)[2:]),
    )
    # ONNX infers no types of this operator; nodes behind it read them.
    steps, batch = (each if isinstance(each, int) else None for each in (layer.steps, layer.batch))
    state = [layer.directions, batch, layer.hidden]
    for position, (name, output) in enumerate(zip(made, outputs, strict=True)):
        if not name:
            continue
        dims = state if position else [steps, *state]
        build.graph.types[name] = helper.make_tensor_type_proto(layer.wide_type, dims)
        if name != output:
            build.add("Cast", name, output=output, to=layer.elem_type)
    return build.nodes


def _nothing(layer: Recurrent) -> list[onnx.NodeProto]:
    """The results of a layer without hidden values."""
    build = layer.build
    zero = build.number(layer.node.input[0], 0)
    state = [layer.directions, layer.batch, 0]
    for position, name in enumerate(layer.node.output):
        if name:
            shape = state if position else [layer.steps, *state]
            build.add("Expand", zero, build.shape(shape), output=name)
    return build.nodes


def _biases(layer: Recurrent) -> tuple[str, str]:
    """What is added to the inputs' product, and what a GRU adds to the third gate's product."""
    name = optional_input(layer.node, _B)
    if not name:
        return "", ""
    build, hidden, width = layer.build, layer.hidden, layer.gates * layer.hidden
    own, recurrent = build.split(layer.widened(name), [width, width], axis=1)
    if layer.cell != "gru_linear":
        total, apart = build.add("Add", own, recurrent), ""
    else:
        first, last = build.split(own, [2 * hidden, hidden], axis=1)
        more, apart = build.split(recurrent, [2 * hidden, hidden], axis=1)
        total = build.add("Concat", build.add("Add", first, more), last, axis=1)
    return build.reshape(total, [layer.directions * width]), apart


def _part(layer: Recurrent, bias: str) -> str:
    """What the inputs give to all gates of all steps and directions."""
    build, width = layer.build, layer.directions * layer.gates * layer.hidden
    size = (build.graph.shape(layer.node.input[W]) or (0,))[layer.input_axis]
    rows = build.reshape(layer.node.input[0], [times(build, layer.steps, layer.batch), size])
    product = layer.input_product(rows)
    if bias:
        product = build.add("Add", product, bias)
    return build.reshape(product, [layer.steps, layer.batch, width])
