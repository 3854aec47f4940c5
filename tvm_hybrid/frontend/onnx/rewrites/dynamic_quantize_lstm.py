"""ONNX Runtime's LSTM with 8-bit weights.

    DynamicQuantizeLSTM(X, W, R, B, ..., W_scale, W_zero_point, R_scale, R_zero_point)
        ->  DynamicQuantizeMatMul(X, W of all directions),
            Recurrent(..., R - R_zero_point, R_scale)

W is [directions, input, 4 * hidden] here, so that of one direction is not transposed. The input is
quantised once for all steps, the hidden state in every step, each sequence by itself (ONNX Runtime
quantises as many rows at once as one of its threads has). R is of bytes if it is constant and its
differences from the zero points are bytes, else of words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError
from tir_schedules.recurrent.problem import STATES

from ..graph.graph import OWN_DOMAIN, Graph, describe
from ..graph.node_builder import NodeBuilder, attributes_of, optional_input, times, with_attributes
from .quantized import MICROSOFT
from .recurrent_layer import Activation, R, Recurrent, W, recurrent
from .registry import rewrites

_PARAMETERS = {W: (8, 9), R: (10, 11)}  # positions of scale and zero point


class _Quantized(Recurrent):
    """Products with 8-bit weights."""

    def recurrence(self) -> dict[str, str]:
        """Inputs of `Recurrent`: R [directions, 4 * hidden, hidden] of integers, and its scales."""
        build, name = self.build, self.node.input[R]
        scales, zero_points = (self._of_columns(R, position) for position in _PARAMETERS[R])
        known = build.graph.constants.get(name)
        offsets = build.graph.constants.get(zero_points) if zero_points else np.zeros(1, np.int8)
        if known is not None and offsets is not None:
            numbers = known.astype(np.int16) - offsets.reshape(-1, 1, offsets.shape[-1])
            rows = np.ascontiguousarray(numbers.transpose(0, 2, 1))
            fits = rows.min() >= -128 and rows.max() <= 127
            return {"weight": build.constant(rows, np.int8 if fits else np.int16), "scales": scales}
        computed = build.add("Cast", name, to=TensorProto.INT32)
        if zero_points:
            shape = [self.directions, 1, self.gates * self.hidden]
            offset = build.add("Cast", build.reshape(zero_points, shape), to=TensorProto.INT32)
            computed = build.add("Sub", computed, offset)
        words = build.add("Cast", computed, to=TensorProto.INT16)
        return {"weight": build.add("Transpose", words, perm=[0, 2, 1]), "scales": scales}

    def input_product(self, rows: str) -> str:
        """Rows of inputs by W of all directions, [rows, directions * 4 * hidden]."""
        build, width = self.build, self.directions * self.gates * self.hidden
        weight = self.node.input[W]
        size = (build.graph.shape(weight) or (0,))[self.input_axis]
        if self.directions > 1:
            weight = build.add("Transpose", weight, perm=[1, 0, 2])
        given = [build.reshape(weight, [size, width])]
        for position in _PARAMETERS[W]:
            name = self._of_columns(W, position)
            given.append(build.reshape(name, [width]) if name else "")
        return build.add("DynamicQuantizeMatMul", rows, *given, domain=MICROSOFT)

    def _of_columns(self, weight: int, position: int) -> str:
        """A weight's scales or zero points, [directions, columns]; "" if they are absent."""
        name, graph = optional_input(self.node, position), self.build.graph
        if not name:
            return ""
        width = self.gates * self.hidden
        shape, what = graph.shape(name), "scale" if position in (8, 10) else "zero point"
        if shape is None:
            raise UnsupportedOperatorError(
                f"{describe(self.node)}: the shape of its {what} {name!r} is not known"
            )
        if shape == (self.directions, width):
            return name
        if shape != (self.directions,):
            raise ModelError(
                f"{describe(self.node)}: a {what} of shape {shape} for a weight of shape "
                f"{graph.shape(self.node.input[weight])}; there is one for each direction, or for "
                "each of its columns"
            )
        array = graph.constants.get(name)
        if array is not None:
            return self.build.constant(np.repeat(array[:, None], width, axis=1))
        rows = self.build.reshape(name, [self.directions, 1])
        return self.build.add("Expand", rows, self.build.shape([self.directions, width]))


@rewrites("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator."""
    return written(node, graph, "lstm", _Quantized, hidden_axis=1)


# LSTM, GRU and RNN: each a product of all inputs, and one operator of all steps.
#
#     LSTM(X [steps, batch, input], W, R, B, ...)
#         ->  MatMul(X, W^T of all directions) + bias,
#             Recurrent(part [steps, batch, directions * gates * hidden], R, ...)
#
# Steps and sequences may be open. In steps behind the end of a sequence (sequence_lens) its state
# stays as it is, and Y is zero.


@rewrites("LSTM")
def lstm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator."""
    return written(node, graph, "lstm")


@rewrites("GRU")
def gru(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator."""
    return written(node, graph, "gru")


@rewrites("RNN")
def rnn(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator."""
    return written(node, graph, "rnn")


def written(
    node: onnx.NodeProto,
    graph: Graph,
    cell: str,
    kind: type[Recurrent] = Recurrent,
    hidden_axis: int = 2,
) -> list[onnx.NodeProto]:
    """A layer as one operator, or as layers that are.

    Parameters
    ----------
    cell
        "lstm", "gru" or "rnn".
    kind
        What tells the weights.
    hidden_axis
        The axis of R that is as long as the hidden state.
    """
    steps_first = batch_first(node, graph, states=[5, 6] if cell == "lstm" else [5])
    if steps_first is not None:
        return steps_first
    layer = recurrent(node, graph, cell, kind, hidden_axis)
    return one_direction_each(node, graph, layer.activations) or one_operator(layer)


# Forms of recurrent layers that are written as others.
#
# LSTM(X [batch, steps, input], ..., layout=1)
#     ->  Transpose(X), LSTM, Transpose(Y [steps, directions, batch, hidden]), Transpose(Y_h)
# GRU(X, W, R, direction="bidirectional", activations=["Sigmoid", "Tanh", "HardSigmoid", "Tanh"])
#     ->  GRU(X, W[:1], R[:1], direction="forward"), GRU(X, W[1:], R[1:], direction="reverse"),
#         Concat of their results


SHARED_INPUTS = (0, 4)
"""X and the sequences' lengths; all other inputs have an axis of directions in front."""


def batch_first(
    node: onnx.NodeProto, graph: Graph, states: Sequence[int]
) -> list[onnx.NodeProto] | None:
    """The layer with the steps in front, or None if they are there already.

    Parameters
    ----------
    states
        The positions of the inputs with the initial states.
    """
    if not attributes_of(node).get("layout"):
        return None
    build = NodeBuilder(graph, node)
    layer = with_attributes(node, layout=None)
    for position in (0, *states):
        name = optional_input(node, position)
        if name:
            layer.input[position] = build.add("Transpose", name, perm=[1, 0, 2])
    outputs = [name and graph.fresh(name) for name in node.output]
    layer.output[:] = outputs
    build.nodes.append(layer)
    for position, (inner, outer) in enumerate(zip(outputs, node.output, strict=True)):
        if outer:
            order = [1, 0, 2] if position else [2, 0, 1, 3]
            build.add("Transpose", inner, output=outer, perm=order)
    return build.nodes


def one_direction_each(
    node: onnx.NodeProto, graph: Graph, activations: Sequence[Activation]
) -> list[onnx.NodeProto] | None:
    """A layer for each direction, or None if all directions have the same functions.

    Parameters
    ----------
    activations
        The functions of all directions, one direction after the other.
    """
    half = len(activations) // 2
    both = attributes_of(node).get("direction") == "bidirectional"
    if not both or list(activations[:half]) == list(activations[half:]):
        return None
    build = NodeBuilder(graph, node)
    parts = [
        [name, name] if position in SHARED_INPUTS or not name else build.split(name, [1, 1], axis=0)
        for position, name in enumerate(node.input)
    ]
    made = []
    for side, direction in enumerate(("forward", "reverse")):
        functions = activations[side * half : (side + 1) * half]
        lists = {
            f"activation_{key}": [
                each.parameters[key] for each in functions if key in each.parameters
            ]
            for key in ("alpha", "beta")
        }
        layer = with_attributes(
            node,
            direction=direction,
            activations=[each.name for each in functions],
            **{key: numbers or None for key, numbers in lists.items()},
        )
        layer.input[:] = [part[side] for part in parts]
        layer.output[:] = [name and graph.fresh(name) for name in node.output]
        build.nodes.append(layer)
        made.append(layer)
    for position, name in enumerate(node.output):
        if name:
            of_sides = [layer.output[position] for layer in made]
            build.add("Concat", *of_sides, output=name, axis=0 if position else 1)
    return build.nodes


_B = 3
_STATES = {"hidden": 5, "memory": 6}
_PEEPHOLES = 7


def one_operator(layer: Recurrent) -> list[onnx.NodeProto]:
    """The operator `Recurrent` for all steps of a layer, behind one product of all inputs.

        LSTM(X [steps, batch, input], W, R, B, ...)
            ->  MatMul(X, W^T of all directions) + bias,
                Recurrent(part [steps, batch, directions * gates * hidden], R, ...)

    Layers of 16 bits are computed in float32 and rounded at the end.

    The nodes.
    """
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
