"""The cells: the next states of one vector of hidden values, in registers, and by NumPy.

    LSTM    i, o, f, c = gates        memory' = f(f) memory + f(i) g(c)     h' = f(o) h(memory')
    GRU     z, r, n = gates           h' = n + z (h - n)
    RNN     h' = f(gate)

Gates are in ONNX's order. Equations are those of the ONNX operators LSTM, GRU and RNN; as in ONNX
Runtime, `clip` bounds what functions of gates are applied to, but not the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from microkernels.vector.expressions import bind, like

from .activations import Mathematics, activation_of, numpy_mathematics, vector_mathematics
from .problem import RecurrentProblem


@dataclass(frozen=True)
class Cell:
    """A cell, over vectors or over arrays.

    Attributes
    ----------
    problem : RecurrentProblem
    activations : tuple of callable
        Its functions.
    bounded : callable
        (value, least, most) -> the value within these bounds.
    named : callable
        Gives a value a name, so that it is computed once.
    """

    problem: RecurrentProblem
    activations: tuple[Callable[[Any], Any], ...]
    bounded: Callable[[Any, float, float], Any]
    named: Callable[[Any], Any]

    def activate(self, number: int, gate: Any) -> Any:
        """A function of a gate."""
        clip = self.problem.clip
        return self.named(
            self.activations[number](self.bounded(gate, -clip, clip) if clip else gate)
        )

    def lstm(self, gates: list[Any], memory: Any, peepholes: list[Any]) -> tuple[Any, Any]:
        """The next h and c; peepholes are empty, or those of i, o and f."""
        begun = self.lstm_gates(gates, memory, peepholes)
        shows, following = self.lstm_memory(begun, memory, peepholes)
        return self.lstm_shown(shows, following), following

    def lstm_gates(self, gates: list[Any], memory: Any, peepholes: list[Any]) -> list[Any]:
        """The gates, with the functions of those that need no next c; parameters as of `lstm`."""
        i, o, f, c = gates
        if peepholes:
            i, f = i + peepholes[0] * memory, f + peepholes[2] * memory
        enter = self.activate(0, i)
        forget = _one_less(enter) if self.problem.coupled else self.activate(0, f)
        return [enter, o if peepholes else self.activate(0, o), forget, c]

    def lstm_memory(self, begun: list[Any], memory: Any, peepholes: list[Any]) -> tuple[Any, Any]:
        """The function of the output gate, and the next c, of what `lstm_gates` gives."""
        enter, shows, forget, c = begun
        following = self.named(forget * memory + enter * self.activate(1, c))
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


def vector_cell(problem: RecurrentProblem) -> Cell:
    """The cell over vectors of the PrimFunc under construction."""
    return _cell(problem, vector_mathematics(problem.dtype), bind)


def numpy_cell(problem: RecurrentProblem) -> Cell:
    """The cell over arrays."""
    return _cell(problem, numpy_mathematics(), lambda value: value)


def _cell(problem: RecurrentProblem, over: Mathematics, named: Callable[[Any], Any]) -> Cell:
    functions = (activation_of(text, over) for text in problem.activations)
    return Cell(problem, tuple(functions), over.bounded, named)


def _one_less(value: Any) -> Any:
    return like(1, value) - value if isinstance(value, tirx.Expr) else 1 - value
