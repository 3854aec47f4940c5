"""Hard-sigmoid and hard-swish in operators that fold and fuse.

HardSigmoid(x)    ->    Clip(Add(Mul(x, alpha), beta), 0, 1)
HardSwish(x)      ->    Mul(x, Clip(Add(Mul(x, 1 / 6), 0.5), 0, 1))

relay_passes/canonicalize/fold_factors.py gives a convolution the factor and the term of a
HardSigmoid behind it.
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites


@rewrites("HardSigmoid", "HardSwish")
def hard_activation(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Three or four operators, once the type is known."""
    x = node.input[0]
    if not graph.elem_type(x):
        return None
    build = NodeBuilder(graph, node)
    attributes = attributes_of(node)
    swish = node.op_type == "HardSwish"
    alpha = 1 / 6 if swish else attributes.get("alpha", 0.2)
    beta = 0.5 if swish else attributes.get("beta", 0.5)
    line = build.add("Add", build.add("Mul", x, build.number(x, alpha)), build.number(x, beta))
    if not swish:
        build.clip(line, x, 0.0, 1.0, output=node.output[0])
        return build.nodes
    build.add("Mul", x, build.clip(line, x, 0.0, 1.0), output=node.output[0])
    return build.nodes
