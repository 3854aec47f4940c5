"""A recurrent layer as one operator of all steps, behind one product of all inputs.

    LSTM(X [steps, batch, input], W, R, B, ...)
        ->  MatMul(X, W^T of all directions) + bias,
            Recurrent(part [steps, batch, directions * gates * hidden], R, ...)

Layers of other types than float32, of weights that are computed, or of functions that the operator
lacks are written out step by step.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tir_schedules.recurrent.cells import ACTIVATIONS
from tir_schedules.recurrent.problem import STATES

from ..graph import OWN_DOMAIN
from ..node_builder import attributes_of, optional_input
from ..node_extents import times
from .recurrent_layer import Recurrent

_W, _B = 1, 3
_STATES = {"hidden": 5, "memory": 6}
_PEEPHOLES = 7


def as_one_operator(layer: Recurrent, cell: str) -> list[onnx.NodeProto] | None:
    """The nodes, or None if the layer has to be written out.

    Parameters
    ----------
    cell
        As the template "recurrent" names it.
    """
    functions = [each.name for each in layer.activations]
    first = functions[: len(functions) // layer.directions]
    biases = layer.build.graph.constants.get(optional_input(layer.node, _B))
    if (
        layer.dtype != np.float32
        or functions != first * layer.directions
        or not ACTIVATIONS.keys() >= set(first)
        or (optional_input(layer.node, _B) and biases is None)
        or not layer.hidden
    ):
        return None
    recurrence = layer.known_recurrence()
    if recurrence is None:
        return None
    build = layer.build
    bias, apart = _biases(biases, cell, layer.hidden)
    inputs = {"part": _part(layer, bias), "weight": recurrence.pop("weight")}
    for name, position in _STATES.items():
        if optional_input(layer.node, position):
            inputs[name] = layer.node.input[position]
    if apart is not None:
        inputs["bias"] = build.constant(apart, np.float32)
    if cell == "lstm" and optional_input(layer.node, _PEEPHOLES):
        inputs["peepholes"] = layer.node.input[_PEEPHOLES]
    if layer.lengths:
        inputs["lengths"] = build.add("Cast", layer.lengths, to=onnx.TensorProto.INT32)
    inputs |= recurrence
    finals = [name for name in layer.node.output[1 : 1 + STATES[cell]] if name]
    outputs = [layer.node.output[0]]
    if finals:
        outputs = [
            layer.node.output[n] if n < len(layer.node.output) else ""
            for n in range(1 + STATES[cell])
        ]
    attributes = attributes_of(layer.node)
    build.add_many(
        "Recurrent",
        *inputs.values(),
        outputs=outputs,
        domain=OWN_DOMAIN,
        cell=cell,
        direction=attributes.get("direction", "forward"),
        activations=" ".join(first),
        clip=attributes.get("clip", 0.0),
        coupled=attributes.get("input_forget", 0),
        finals=int(bool(finals)),
        given=" ".join(list(inputs)[2:]),
    )
    steps, batch = (each if isinstance(each, int) else None for each in (layer.steps, layer.batch))
    state = [layer.directions, batch, layer.hidden]
    for name in filter(None, outputs):
        dims = [steps, *state] if name == outputs[0] else state
        build.graph.types[name] = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, dims)
    return build.nodes


def _biases(
    bias: np.ndarray | None, cell: str, hidden: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """What is added to the inputs' product, and what a GRU adds to the third gate's product."""
    if bias is None:
        return None, None
    own, recurrent = (each.copy() for each in np.split(bias, 2, axis=1))
    if cell != "gru_linear":
        return (own + recurrent).reshape(-1), None
    apart = recurrent[:, 2 * hidden :].copy()
    recurrent[:, 2 * hidden :] = 0
    return (own + recurrent).reshape(-1), apart


def _part(layer: Recurrent, bias: np.ndarray | None) -> str:
    """What the inputs give to all gates of all steps and directions."""
    build, width = layer.build, layer.directions * layer.gates * layer.hidden
    size = (build.graph.shape(layer.node.input[_W]) or (0,))[layer.input_axis]
    rows = build.reshape(layer.node.input[0], [times(build, layer.steps, layer.batch), size])
    product = layer.input_product(rows)
    if bias is not None:
        product = build.add("Add", product, build.constant(bias, np.float32))
    return build.reshape(product, [layer.steps, layer.batch, width])
