"""What LSTM, GRU and RNN share: directions and time steps; the cell is each operator's own.

    LSTM/GRU/RNN(X [steps, batch, input], W, R, B, ...)
        ->  one MatMul(X, W^T) + bias for all steps, then per step MatMul(h, R^T) and the cell,
            Concat of the steps, Concat of the directions

Steps and sequences may be open. In steps behind the end of a sequence (sequence_lens) its state
stays as it is, and Y is zero.
"""

from __future__ import annotations

import onnx
from onnx import helper

from microkernels.errors import ModelError, UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import Extent, NodeBuilder, attributes_of, optional_input
from ..node_extents import counted, extents_of, times
from .recurrent_activations import activations_of
from .recurrent_layer import Cell, Direction, Recurrent
from .recurrent_steps import run_steps

_DIRECTIONS = ("forward", "reverse", "bidirectional")


def recurrent(
    node: onnx.NodeProto,
    graph: Graph,
    gates: int,
    activations: list[str],
    kind: type[Recurrent] = Recurrent,
    hidden_axis: int = 2,
) -> Recurrent:
    """Reads a node; UnsupportedOperatorError for forms that are not written out.

    Parameters
    ----------
    hidden_axis
        The axis of R that is as long as the hidden state.
    """
    attributes = attributes_of(node)
    build, weight = NodeBuilder(graph, node), graph.shape(node.input[2])
    shape = extents_of(build, node.input[0])
    if len(shape) != 3 or weight is None or len(weight) != 3:
        raise UnsupportedOperatorError(f"{describe(node)}: the shapes of its weights are not known")
    direction = attributes.get("direction", "forward")
    if direction not in _DIRECTIONS or weight[0] != (2 if direction == "bidirectional" else 1):
        raise ModelError(f"{describe(node)}: direction {direction!r} with weights of {weight[0]}")
    steps, batch, _ = shape
    lengths = optional_input(node, 4)
    return kind(
        node=node,
        build=build,
        gates=gates,
        steps=steps,
        batch=batch,
        hidden=weight[hidden_axis],
        input_axis=hidden_axis,
        dtype=helper.tensor_dtype_to_np_dtype(graph.elem_type(node.input[0])),
        activations=activations_of(node, activations, weight[0]),
        lengths="" if _full_lengths(graph, lengths, steps) else lengths,
    )


def unroll(layer: Recurrent, states: list[int], cell: Cell) -> list[onnx.NodeProto]:
    """Writes all directions and steps.

    Parameters
    ----------
    states
        The positions of the inputs with the initial states; the first is h.
    cell
        Makes a direction's function for one step.
    """
    build, node = layer.build, layer.node
    within = _within(layer)
    sequences: list[list[str]] = []
    finals: list[list[str]] = []
    for direction in range(layer.directions):
        side = _direction(layer, direction)
        initial = [layer.state(position, direction) for position in states]
        made, final = run_steps(layer, side, cell, [_input_part(layer, side), *within], initial)
        sequences.append(made)
        finals.append(final)
    shape = [1, layer.batch, layer.hidden]
    if node.output[0]:
        _join(layer, sequences)
    for position in range(len(states)):
        output = node.output[position + 1] if position + 1 < len(node.output) else ""
        if output:
            last = [build.reshape(final[position], shape) for final in finals]
            build.add("Concat", *last, output=output, axis=0)
    return build.nodes


def _join(layer: Recurrent, sequences: list[list[str]]) -> None:
    """Y, of the hidden states of each direction."""
    build, output = layer.build, layer.node.output[0]
    full = [layer.steps, layer.directions, layer.batch, layer.hidden]
    if not layer.steps:
        nothing = build.constant(0, layer.dtype)
        build.add("Expand", nothing, build.shape(full), output=output)
    elif layer.directions == 1:
        build.reshape(_rows(layer, sequences[0]), full, output=output)
    else:
        of_direction = [layer.steps, layer.batch, layer.hidden]
        parts = [build.reshape(_rows(layer, made), of_direction) for made in sequences]
        build.stack(parts, 1, output)


def _rows(layer: Recurrent, made: list[str]) -> str:
    """The hidden states of all steps, one behind the other."""
    return layer.build.add("Concat", *made, axis=0) if len(made) > 1 else made[0]


def _full_lengths(graph: Graph, name: str, steps: Extent) -> bool:
    lengths = graph.constants.get(name)
    return not name or (lengths is not None and bool((lengths == steps).all()))


def _within(layer: Recurrent) -> list[str]:
    """Which sequences have a step, ``[steps, batch, 1]``; nothing if all have all."""
    build = layer.build
    if not layer.lengths:
        return []
    # Integers are compared since opset 9.
    kind = onnx.TensorProto.FLOAT if build.graph.opset < 9 else onnx.TensorProto.INT32
    ends = build.add("Cast", build.reshape(layer.lengths, [layer.batch, 1]), to=kind)
    steps = build.add("Cast", counted(build, layer.steps), to=kind)
    return [build.add("Less", build.reshape(steps, [layer.steps, 1, 1]), ends)]


def _direction(layer: Recurrent, index: int) -> Direction:
    build = layer.build
    width = layer.gates * layer.hidden
    bias = layer.slice_of(3, index)
    input_bias, recurrence_bias = build.split(bias, [width, width], axis=0) if bias else ("", "")
    per_direction = len(layer.activations) // layer.directions
    backward = index == 1 or layer.attribute("direction", "forward") == "reverse"
    return Direction(
        index=index,
        order=-1 if backward else 1,
        recurrence=layer.weight(2, index),
        input_bias=input_bias,
        recurrence_bias=recurrence_bias,
        activations=layer.activations[index * per_direction : (index + 1) * per_direction],
    )


def _input_part(layer: Recurrent, side: Direction) -> str:
    """X W^T + bias of all steps, in one MatMul."""
    build, width = layer.build, layer.gates * layer.hidden
    weight = layer.weight(1, side.index)
    size = (build.graph.shape(layer.node.input[1]) or (0,))[layer.input_axis]
    rows = build.reshape(layer.node.input[0], [times(build, layer.steps, layer.batch), size])
    product = layer.multiply(rows, weight)
    if side.input_bias:
        product = build.add("Add", product, side.input_bias)
    return build.reshape(product, [layer.steps, layer.batch, width])
