"""LRN of an even size is refused: TVM's importer takes one channel too many."""

from __future__ import annotations

import onnx

from microkernels.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import attributes_of
from .registry import rewrites


@rewrites("LRN")
def lrn(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuses what ONNX Runtime refuses too."""
    size = attributes_of(node)["size"]
    if size % 2 == 0:
        raise UnsupportedOperatorError(f"{describe(node)}: size={size} is even; use an odd one")
