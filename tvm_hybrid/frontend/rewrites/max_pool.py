"""MaxPool: explicit padding, and one output.

The second output, the places of the maxima, is refused by name: TVM's importer has none. The
rest is auto_pad.py's.
"""

from __future__ import annotations

import onnx

from microkernels.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from .auto_pad import auto_pad
from .registry import rewrites


@rewrites("MaxPool")
def max_pool(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """As auto_pad.py has it, if the places are not asked for."""
    if len(node.output) > 1 and node.output[1]:
        raise UnsupportedOperatorError(
            f"{describe(node)}: its output {node.output[1]!r} (the indices of the maxima) is not "
            "supported"
        )
    return auto_pad(node, graph)
