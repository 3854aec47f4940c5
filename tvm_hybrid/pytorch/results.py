"""What a graph returns: computed tensors, arguments as they came, sizes, and nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from microkernels.base.errors import CompileError

Pick = Callable[[Sequence[Any], Sequence[Any]], Any]  # (arguments, computed tensors) -> result


class Results:
    """The results of a graph of ATen operators.

    Parameters
    ----------
    graph : torch.fx.GraphModule

    Attributes
    ----------
    tensors : list of torch.fx.Node
        The tensors that have to be computed, each once.

    Raises
    ------
    CompileError
        If there are none.
    """

    def __init__(self, graph: Any) -> None:
        nodes = list(graph.graph.nodes)
        returned = nodes[-1].args[0]
        arguments = [node for node in nodes if node.op == "placeholder"]
        self.tensors: list[Any] = []
        numbers: list[Any] = []
        self._picks: list[Pick] = []
        for node in returned:
            if not isinstance(node, fx.Node):
                self._picks.append(_constant(node))
            elif node.op == "placeholder":
                self._picks.append(_argument(arguments.index(node)))
            elif not isinstance(node.meta["val"], torch.Tensor):
                numbers.append(node)
                self._picks.append(_argument(len(arguments) + len(numbers) - 1))
            else:
                if node not in self.tensors:
                    self.tensors.append(node)
                self._picks.append(_computed(self.tensors.index(node)))
        if not self.tensors:
            raise CompileError("the graph computes no tensors")
        self._numbers = _part(graph, numbers) if numbers else None

    def of(self, arguments: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        """The results.

        Parameters
        ----------
        arguments : sequence
            Of the graph.
        tensors : sequence of torch.Tensor
            The values of `tensors`.
        """
        if self._numbers is not None:
            arguments = (*arguments, *self._numbers(*arguments))
        return [pick(arguments, tensors) for pick in self._picks]


def _constant(value: Any) -> Pick:
    return lambda arguments, tensors: value


def _argument(number: int) -> Pick:
    return lambda arguments, tensors: arguments[number]


def _computed(number: int) -> Pick:
    return lambda arguments, tensors: tensors[number]


def _part(graph: Any, outputs: Sequence[Any]) -> Any:
    """The part of a graph that computes some nodes, such as sizes, for torch to run."""
    part = fx.Graph()
    copies: dict[Any, Any] = {}
    for node in graph.graph.nodes:
        if node.op != "output":
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in outputs))
    part.eliminate_dead_code()  # keeps the arguments
    return fx.GraphModule(graph, part)
