"""Which graphs of TorchDynamo are for this backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


def why_not(graph: Any, arguments: Sequence[Any]) -> str:
    """Why a graph has to run in eager mode; "" if nothing is known against it.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        As TorchDynamo captures it.
    arguments : sequence
        What it is called with.
    """
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    tensors = list(_tensors([*arguments, *values]))
    for each in tensors:
        if each.device.type != "cpu":
            return f"it has tensors on {each.device}, and only those of CPUs are taken"
        if each.layout != torch.strided or each.is_nested:
            return "it has nested or sparse tensors"
        if each.is_conj() or each.is_neg():
            return "it has lazily conjugated or negated tensors"
    returned = [
        node.meta.get("example_value")
        for node in next(iter(graph.graph.find_nodes(op="output"))).all_input_nodes
    ]
    if torch.is_grad_enabled() and any(each.requires_grad for each in _tensors(returned)):
        return (
            "its results need gradients; for inference, call the model under torch.no_grad() or "
            "torch.inference_mode()"
        )
    return ""


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (tuple, list)):
            yield from _tensors(each)
