"""Copies the nodes of a body (a branch, a function) into the graph under names of their own."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from .graph import Graph, subgraphs


def inline(
    nodes: Iterable[onnx.NodeProto], names: dict[str, str], graph: Graph, prefix: str
) -> list[onnx.NodeProto]:
    """Copies of `nodes`, renamed.

    Parameters
    ----------
    names
        New names by old ones, for the body's inputs and outputs; values that the body defines and
        that are missing here get fresh names (and are added). Names neither defined nor listed
        belong to the surroundings and stay.
    prefix
        What the copies' node names begin with.
    """
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{prefix}/{node.name or node.op_type}"
        rename_values(copy, names)
        for position, name in enumerate(node.output):
            if name:
                names.setdefault(name, graph.fresh(f"{prefix}/{name}"))
                copy.output[position] = names[name]
        copies.append(copy)
    return copies


def rename_values(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Renames, in place, what a node and the bodies inside it read from outside."""
    for position, name in enumerate(node.input):
        node.input[position] = names.get(name, name)
    for body in subgraphs(node):
        own = {item.name for item in (*body.input, *body.initializer)}
        own.update(name for inner in body.node for name in inner.output)
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in body.node:
            rename_values(inner, outer)
        for item in body.output:
            item.name = outer.get(item.name, item.name)
