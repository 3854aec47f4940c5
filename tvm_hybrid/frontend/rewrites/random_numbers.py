"""Random operators as one of the front end's own, and what is made of its numbers.

RandomUniform(shape=[2, 3])    ->    RandomNumbers(shape=[2, 3], distribution=uniform, ...)
RandomNormalLike(x)            ->    RandomNumbers(shape=..., distribution=normal, ...)
Bernoulli(p)                   ->    Cast(Less(RandomNumbers, p))
Multinomial(x)                 ->    for each number the first place where the sums of the
                                     probabilities exceed it

The numbers come from sequence_converters.py. ONNX's own function for Bernoulli draws 1 with the
probability 1 - p.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import OWN_DOMAIN, Graph, describe
from ..node_builder import NodeBuilder, attributes_of, known_shape
from .registry import rewrites

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rewrites("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def random_numbers(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The numbers of a shape that is given, or that of the input."""
    attributes = attributes_of(node)
    like = node.op_type.endswith("Like")
    shape = known_shape(graph, node, node.input[0]) if like else attributes["shape"]
    elem_type = attributes.get("dtype")
    if elem_type is None:
        elem_type = graph.elem_type(node.input[0]) if like else TensorProto.FLOAT
    if elem_type not in FLOATS:
        raise UnsupportedOperatorError(
            f"{describe(node)}: it makes floats, not {TensorProto.DataType.Name(elem_type)}; "
            "give the attribute dtype"
        )
    if 0 in shape:
        return None
    if node.op_type.startswith("RandomUniform"):
        numbers = attributes.get("low", 0.0), attributes.get("high", 1.0)
        distribution = "uniform"
    else:
        numbers = attributes.get("mean", 0.0), attributes.get("scale", 1.0)
        distribution = "normal"
    build = NodeBuilder(graph, node)
    _draw(build, shape, elem_type, distribution, numbers, node.output[0])
    return build.nodes


@rewrites("Bernoulli")
def bernoulli(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """1 where a number of [0, 1) is less than the probability: never for 0, always for 1."""
    build, p = NodeBuilder(graph, node), node.input[0]
    own = graph.elem_type(p)
    elem_type = _wide(own)
    u = _draw(build, known_shape(graph, node, p), elem_type)
    if own != elem_type:
        p = build.add("Cast", p, to=elem_type)
    drawn = build.add("Less", u, p)
    build.add("Cast", drawn, output=node.output[0], to=attributes_of(node).get("dtype", own))
    return build.nodes


@rewrites("Multinomial")
def multinomial(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Places of `sample_size` draws from each row of logarithms, which need not add up to 1."""
    attributes = attributes_of(node)
    batch, classes = known_shape(graph, node, node.input[0])
    if not classes:
        raise ValueError("there are no classes to choose from")
    count = attributes.get("sample_size", 1)
    build, x = NodeBuilder(graph, node), node.input[0]
    elem_type = _wide(graph.elem_type(x))
    if graph.elem_type(x) != elem_type:
        x = build.add("Cast", x, to=elem_type)
    sums = build.add("CumSum", build.add("Softmax", x, axis=1), build.constant(1))
    # A product with a number below 1 is below the last sum, which therefore exceeds it.
    u = _draw(build, (batch, count), elem_type)
    drawn = build.add("Mul", u, build.add("Gather", sums, build.constant([classes - 1]), axis=1))
    exceeds = build.add(
        "Less", build.reshape(drawn, (batch, count, 1)), build.reshape(sums, (batch, 1, classes))
    )
    first = build.add(
        "ArgMax", build.add("Cast", exceeds, to=TensorProto.INT32), axis=2, keepdims=0
    )
    build.add("Cast", first, output=node.output[0], to=attributes.get("dtype", TensorProto.INT32))
    return build.nodes


def _wide(elem_type: int) -> int:
    return elem_type if elem_type == TensorProto.DOUBLE else TensorProto.FLOAT


def _draw(
    build: NodeBuilder,
    shape: Any,
    elem_type: int,
    distribution: str = "uniform",
    numbers: tuple[float, float] = (0.0, 1.0),
    output: str = "",
) -> str:
    """Numbers of the replaced node's seed; fresh ones if it has none."""
    attributes = attributes_of(build.source)
    seed = {"seed": attributes["seed"]} if "seed" in attributes else {}
    drawn = build.add(
        "RandomNumbers",
        output=output,
        domain=OWN_DOMAIN,
        shape=list(shape) or None,  # an empty list has no type
        dtype=elem_type,
        distribution=distribution,
        numbers=list(numbers),
        **seed,
    )
    build.graph.declare(drawn, elem_type, tuple(shape))
    return drawn
