"""The activation functions of recurrent cells, each written once for vectors and for arrays.

    "Tanh"    "HardSigmoid:0.2:0.5"    "Elu:1.0"        name, alpha, beta

Functions are those of the ONNX operators LSTM, GRU and RNN. Float32 vectors use the polynomials of
every epilogue; float64 vectors use the functions of the C library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from microkernels.vector import ieee
from microkernels.vector.expressions import Expr, bind, like
from tir_schedules.epilogue.fusible_ops import FUSIBLE_OPS

from .problem import RecurrentProblem

_FUNCTIONS = ("exp", "sigmoid", "softplus", "tanh")


@dataclass(frozen=True)
class Mathematics:
    """The operations of activation functions, over vectors or over arrays.

    Attributes
    ----------
    functions : dict
        exp, sigmoid, softplus and tanh, by name.
    absolute : callable
    bounded : callable
        (value, least, most) -> the value within these bounds; NaN stays NaN.
    choose : callable
        (condition, one, other) -> one where the condition holds, else the other.
    like : callable
        (number, value) -> the number in the value's type.
    named : callable
        Gives a value a name, so that it is computed once.
    """

    functions: dict[str, Callable[[Any], Any]]
    absolute: Callable[[Any], Any]
    bounded: Callable[[Any, float, float], Any]
    choose: Callable[[Any, Any, Any], Any]
    like: Callable[[float, Any], Any]
    named: Callable[[Any], Any]


Activation = Callable[..., Any]  # (mathematics, value, alpha and beta if it has them) -> value


def _affine(over: Mathematics, x: Any, alpha: float, beta: float) -> Any:
    return over.like(alpha, x) * x + over.like(beta, x)


def _elu(over: Mathematics, x: Any, alpha: float) -> Any:
    x = over.named(x)
    least = over.functions["exp"](over.bounded(x, -np.inf, 0.0))
    return over.choose(x < over.like(0, x), over.like(alpha, x) * (least - over.like(1, x)), x)


def _leaky_relu(over: Mathematics, x: Any, alpha: float) -> Any:
    x = over.named(x)
    return over.choose(x < over.like(0, x), over.like(alpha, x) * x, x)


def _softsign(over: Mathematics, x: Any) -> Any:
    x = over.named(x)
    return x / (over.like(1, x) + over.absolute(x))


def _thresholded_relu(over: Mathematics, x: Any, alpha: float) -> Any:
    x = over.named(x)
    return over.choose(x > over.like(alpha, x), x, over.like(0, x))


ACTIVATIONS: dict[str, Activation] = {
    "Affine": _affine,
    "Elu": _elu,
    "HardSigmoid": lambda over, x, *args: over.bounded(_affine(over, x, *args), 0.0, 1.0),
    "LeakyRelu": _leaky_relu,
    "Relu": lambda over, x: over.bounded(x, 0.0, np.inf),
    "ScaledTanh": lambda over, x, alpha, beta: (
        over.like(alpha, x) * over.functions["tanh"](over.like(beta, x) * x)
    ),
    "Sigmoid": lambda over, x: over.functions["sigmoid"](x),
    "Softplus": lambda over, x: over.functions["softplus"](x),
    "Softsign": _softsign,
    "Tanh": lambda over, x: over.functions["tanh"](x),
    "ThresholdedRelu": _thresholded_relu,
}
"""The functions that a cell may have, by ONNX's names."""


def activation_of(text: str, over: Mathematics) -> Callable[[Any], Any]:
    """The function that a text names, with its parameters."""
    name, *parameters = text.split(":")
    numbers = tuple(map(float, parameters))
    return lambda x: ACTIVATIONS[name](over, x, *numbers)


def vector_mathematics(dtype: str) -> Mathematics:
    """The operations on vectors of "float32" or "float64"."""

    def bounded(value: Expr, least: float, most: float) -> Expr:
        # In this order a NaN stays.
        below = value if most == np.inf else tirx.Min(like(most, value), value)
        return below if least == -np.inf else tirx.Max(like(least, below), below)

    functions = _WIDE
    if dtype == "float32":
        functions = {name: FUSIBLE_OPS[name].emit for name in _FUNCTIONS}
    return Mathematics(functions, ieee.absolute, bounded, tirx.Select, like, bind)


_ARRAYS: dict[str, Callable[[Any], Any]] = {name: FUSIBLE_OPS[name].numpy for name in _FUNCTIONS}
ARRAYS = Mathematics(_ARRAYS, np.abs, np.clip, np.where, lambda number, _: number, lambda x: x)
"""The operations on arrays."""


def _wide_sigmoid(x: Expr) -> Expr:
    one = like(1, x)
    return one / (one + tirx.exp(like(0, x) - x))


def _wide_softplus(x: Expr) -> Expr:
    x = bind(x)
    return tirx.Max(like(0, x), x) + tirx.log(like(1, x) + tirx.exp(like(0, x) - ieee.absolute(x)))


_WIDE: dict[str, Callable[[Any], Any]] = {
    "exp": tirx.exp,
    "sigmoid": _wide_sigmoid,
    "softplus": _wide_softplus,
    "tanh": lambda x: like(2, x) * _wide_sigmoid(like(2, x) * x) - like(1, x),
}


# The cells: the next states of one vector of hidden values, in registers, and by NumPy.
#
#     LSTM    i, o, f, c = gates        memory' = f(f) memory + f(i) g(c)     h' = f(o) h(memory')
#     GRU     z, r, n = gates           h' = n + z (h - n)
#     RNN     h' = f(gate)
#
# Gates are in ONNX's order. Equations are those of the ONNX operators LSTM, GRU and RNN; as in ONNX
# Runtime, `clip` bounds the arguments of gate functions, but not the memory.


class Cell:
    """A cell, over vectors or over arrays.

    Parameters
    ----------
    problem : RecurrentProblem
    over : Mathematics
        The operations of its functions.
    """

    def __init__(self, problem: RecurrentProblem, over: Mathematics) -> None:
        self.problem, self.over = problem, over
        self.activations = [activation_of(text, over) for text in problem.activations]

    def activate(self, number: int, gate: Any) -> Any:
        """Applies a function to a gate."""
        clip = self.problem.clip
        bounded = self.over.bounded(gate, -clip, clip) if clip else gate
        return self.over.named(self.activations[number](bounded))

    def lstm(self, gates: list[Any], memory: Any, peepholes: list[Any]) -> tuple[Any, Any]:
        """The next h and c; peepholes are empty, or those of i, o and f."""
        begun = self.lstm_gates(gates, memory, peepholes)
        shows, following = self.lstm_memory(begun, memory, peepholes)
        return self.lstm_shown(shows, following), following

    def lstm_gates(self, gates: list[Any], memory: Any, peepholes: list[Any]) -> list[Any]:
        """The gates, with the functions of those that need no next c; parameters: see `lstm`."""
        i, o, f, c = gates
        if peepholes:
            i, f = i + peepholes[0] * memory, f + peepholes[2] * memory
        enter = self.activate(0, i)
        forget = self.over.like(1, enter) - enter if self.problem.coupled else self.activate(0, f)
        return [enter, o if peepholes else self.activate(0, o), forget, c]

    def lstm_memory(self, begun: list[Any], memory: Any, peepholes: list[Any]) -> tuple[Any, Any]:
        """The function of the output gate, and the next c, from the result of `lstm_gates`."""
        enter, shows, forget, c = begun
        following = self.over.named(forget * memory + enter * self.activate(1, c))
        if peepholes:
            shows = self.activate(0, shows + peepholes[1] * following)
        return shows, following

    def lstm_shown(self, shows: Any, following: Any) -> Any:
        """The next h: as much of the next c as the output gate shows."""
        return shows * self.activations[2](following)

    def gru(self, update: Any, candidate: Any, hidden: Any) -> Any:
        """The next h; `update` is z, and `candidate` n before its function."""
        found = self.activate(1, candidate)
        return found + update * (hidden - found)
