"""LSTM, GRU and RNN by their equations, in the inputs' precision.

onnx's reference lacks activations, clipping and coupled gates, and ONNX Runtime lacks float64 and
layout 1. As in ONNX Runtime, `clip` bounds the gates and not the cell state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

Array = NDArray[Any]
Function = Callable[[Array], Array]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "Elu": lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "Relu": lambda x: np.maximum(x, 0),
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "Sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Tanh": np.tanh,
}
PARAMETERS = {"Affine": 2, "Elu": 1, "HardSigmoid": 2, "LeakyRelu": 1, "ScaledTanh": 2}
"""How many parameters a function has; nodes that are drawn state all of them."""


def recurrent_results(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> list[Array]:
    """All outputs of a node, including those without a name.

    Raises
    ------
    ValueError, IndexError
        If the shapes do not fit.
    """
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    given = [*inputs, *[None] * (8 - len(inputs))]
    x, w, r = given[:3]
    assert x is not None and w is not None and r is not None
    kind = x.dtype
    wide = np.float64 if kind == np.float64 else np.float32
    layout = attributes.get("layout", 0)
    states = [None if each is None else each.astype(wide) for each in given[5:7]]
    if layout:
        x = x.swapaxes(0, 1)
        states = [None if each is None else each.swapaxes(0, 1) for each in states]
    if len(w) != len(r) or len(w) != 1 + (attributes.get("direction") == b"bidirectional"):
        raise ValueError(f"weights of {len(w)} and {len(r)} directions")
    functions = _functions(node.op_type, attributes, len(w))
    sides, finals = [], []
    for side in range(len(w)):
        weights = [
            None if each is None else each[side].astype(wide)
            for each in (w, r, given[3], given[7], *states)
        ]
        backward = side == 1 or attributes.get("direction") == b"reverse"
        rows, last = _direction(
            node.op_type, attributes, functions[side], x.astype(wide), weights, given[4], backward
        )
        sides.append(rows)
        finals.append(last)
    y = np.stack(sides, axis=1)
    ends = [np.stack(each) for each in zip(*finals, strict=True)]
    if layout:
        y, ends = y.transpose(2, 0, 1, 3), [each.swapaxes(0, 1) for each in ends]
    return [each.astype(kind) for each in (y, *ends)][: len(node.output)]


def _functions(op: str, attributes: dict[str, Any], sides: int) -> list[list[Function]]:
    names = [each.decode() for each in attributes.get("activations", [])]
    names = names or list(DEFAULTS[op]) * sides
    lists = [iter(attributes.get(f"activation_{key}", [])) for key in ("alpha", "beta")]
    made = [_function(name, lists) for name in names]
    count = len(made) // sides
    return [made[side * count : (side + 1) * count] for side in range(sides)]


def _function(name: str, lists: Sequence[Iterator[float]]) -> Function:
    numbers = [next(each) for each in lists[: PARAMETERS.get(name, 0)]]
    return lambda x: FUNCTIONS[name](x, *numbers)


def _direction(
    op: str,
    attributes: dict[str, Any],
    functions: list[Function],
    x: Array,
    weights: Sequence[Array | None],
    lengths: Array | None,
    backward: bool,
) -> tuple[Array, list[Array]]:
    """The hidden states of all steps, and the final states."""
    w, r, bias, peepholes, *initial = weights
    assert w is not None and r is not None
    steps, batch, hidden = len(x), x.shape[1], r.shape[1]
    halves = np.split(np.zeros(2 * len(r), x.dtype) if bias is None else bias, 2)
    states = [
        np.zeros((batch, hidden), x.dtype) if each is None else each
        for each in initial[: 2 if op == "LSTM" else 1]
    ]
    bound = attributes.get("clip", np.inf)

    def gate(number: int, value: Array) -> Array:
        return functions[number](np.clip(value, -bound, bound))

    rows = np.zeros((steps, batch, hidden), x.dtype)
    for step in range(steps)[:: -1 if backward else 1]:
        h = states[0]
        if op == "RNN":
            new = [gate(0, x[step] @ w.T + h @ r.T + halves[0] + halves[1])]
        elif op == "LSTM":
            sums = x[step] @ w.T + h @ r.T + halves[0] + halves[1]
            p = [0, 0, 0] if peepholes is None else np.split(peepholes, 3)
            new = _lstm(gate, functions[2], np.split(sums, 4, 1), states[1], p, attributes)
        else:
            linear = bool(attributes.get("linear_before_reset"))
            new = [_gru(gate, x[step] @ w.T + halves[0], h, np.split(r, 3), halves[1], linear)]
        within = (step < np.full(batch, steps) if lengths is None else step < lengths)[:, None]
        states = [np.where(within, one, other) for one, other in zip(new, states, strict=True)]
        rows[step] = np.where(within, states[0], 0)
    return rows, states


def _lstm(
    gate: Callable[[int, Array], Array],
    last: Function,
    sums: list[Array],
    memory: Array,
    peepholes: Sequence[Any],
    attributes: dict[str, Any],
) -> list[Array]:
    i, o, f, c = sums
    enter = gate(0, i + peepholes[0] * memory)
    forget = 1 - enter if attributes.get("input_forget") else gate(0, f + peepholes[2] * memory)
    memory = forget * memory + enter * gate(1, c)
    return [gate(0, o + peepholes[1] * memory) * last(memory), memory]


def _gru(
    gate: Callable[[int, Array], Array],
    part: Array,
    h: Array,
    r: list[Array],
    bias: Array,
    linear: bool,
) -> Array:
    parts, biases = np.split(part, 3, 1), np.split(bias, 3)
    z, reset = (gate(0, parts[k] + h @ r[k].T + biases[k]) for k in (0, 1))
    inner = reset * (h @ r[2].T + biases[2]) if linear else (reset * h) @ r[2].T + biases[2]
    n = gate(1, parts[2] + inner)
    return (1 - z) * n + z * h
