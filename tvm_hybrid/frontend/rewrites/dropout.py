"""Dropout in training mode is refused: TVM's importer would take it for one of inference."""

from __future__ import annotations

import onnx

from microkernels.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import optional_input
from .registry import rewrites


@rewrites("Dropout")
def dropout(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuses what may drop anything."""
    ratio, training = (graph.constants.get(optional_input(node, place)) for place in (1, 2))
    if not optional_input(node, 2) or (training is not None and not training.any()):
        return
    if ratio is None or ratio.any():
        raise UnsupportedOperatorError(
            f"{describe(node)} is or may be in training mode; export it for inference"
        )
