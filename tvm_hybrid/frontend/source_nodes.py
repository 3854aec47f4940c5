"""SourceNodes: the nodes of a model as they were before anything was folded or rewritten."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ..explain.model_nodes import ModelNode, ModelNodes
from .graph import Graph, captured_names


@dataclass(frozen=True)
class SourceNodes:
    """A list of nodes, each with the values that it reads and makes.

    Parameters
    ----------
    texts : list of str
        Name and operator of each.
    reads, makes : list of tuple of str
        Names of values.
    outputs : list of str
        The model's.
    """

    texts: list[str]
    reads: list[tuple[str, ...]]
    makes: list[tuple[str, ...]]
    outputs: list[str]

    @staticmethod
    def of(graph: Graph) -> SourceNodes:
        """Those of a graph that was just loaded; notes in it which node makes a value."""
        found = SourceNodes([], [], [], list(graph.outputs))
        for number, node in enumerate(graph.nodes):
            made = tuple(filter(None, node.output))
            found.texts.append(_text(node))
            found.reads.append((*filter(None, node.input), *sorted(captured_names(node))))
            found.makes.append(made)
            graph.origins.update(dict.fromkeys(made, number))
        return found

    def at_run_time(self, graph: Graph) -> ModelNodes:
        """Those that are not constant in a graph that was folded."""
        maker = {name: i for i, names in enumerate(self.makes) for name in names}
        kept = [
            number
            for number, names in enumerate(self.makes)
            if not all(name in graph.folded for name in names)
        ]
        alive = {*kept}
        nodes = {
            number: ModelNode(
                self.texts[number],
                tuple(
                    dict.fromkeys(
                        maker[name] for name in self.reads[number] if maker.get(name) in alive
                    )
                ),
            )
            for number in kept
        }
        return ModelNodes(nodes, tuple(maker.get(name) for name in self.outputs))


def _text(node: onnx.NodeProto) -> str:
    return f"{node.name or next(iter(node.output), '')} ({node.op_type})"
