"""The graph of a loop's body, typed, folded and rewritten by itself.

    Repeat(limit, condition, states..., captured..., body)
        body: (i, states..., captured...) -> (going, states..., rows...)

States keep their types. A row is what one iteration adds to an output of the loop.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph import OWN_DOMAIN, Graph
from ..node_builder import attributes_of
from ..parameters import require_value


def is_repeat(node: onnx.NodeProto) -> bool:
    """Whether a node is a loop that stays one."""
    return node.op_type == "Repeat" and node.domain == OWN_DOMAIN


def add_body(node: onnx.NodeProto, graph: Graph, propagate: Callable[[Graph], None]) -> None:
    """Makes the graph of a Repeat's body, declares what the loop makes, and notes its form.

    The graph goes into `graph.bodies` under the name of the node's first output. Constants that
    the body reads become its own and are no inputs of the node any more.

    Raises
    ------
    InputValueError
        A state changes its type, and inputs decide how often the body runs.
    ModelError
        The loop never ends.
    UnsupportedOperatorError
        A state changes its type, or the rank of a state or of a row is not known.
    """
    source = f"Loop node {node.name!r}"
    attributes = attributes_of(node)
    proto, count = attributes["body"], attributes["states"]
    values = dict(zip((item.name for item in proto.input[1:]), node.input[2:], strict=True))
    states, captured = list(values)[:count], list(values)[count:]
    fed = [name for name in captured if values[name] not in graph.constants]
    body = graph.inner(proto.name, [proto.input[0].name, *states, *fed])
    body.declare(proto.input[0].name, TensorProto.INT64, ())
    for name in [*states, *fed]:
        dims = _dims(graph, values[name], source)
        body.types[name] = helper.make_tensor_type_proto(graph.elem_type(values[name]), dims)
    for name in captured:
        if name not in fed:
            body.add_constant(name, graph.constants[values[name]])
            if values[name] in graph.narrow:
                body.narrow[name] = graph.narrow[values[name]]
    body.nodes = [onnx.NodeProto.FromString(inner.SerializeToString()) for inner in proto.node]
    # An output of its own for each: one may be an input, a constant, or given twice.
    body.outputs = [body.fresh(item.name) for item in proto.output]
    for item, output in zip(proto.output, body.outputs, strict=True):
        body.nodes.append(helper.make_node("Identity", [item.name], [output]))
    propagate(body)
    for name, made in zip(states, body.outputs[1:], strict=False):
        before = body.elem_type(name), body.dims(name)
        after = body.elem_type(made), body.dims(made)
        if before[0] != after[0] or _differ(before[1], after[1]):
            # If inputs decide how often it runs, it can be written out for their values.
            for given in node.input[:2]:
                require_value(source, given, graph)
            raise UnsupportedOperatorError(
                f"{source}: its state {name!r} has another type or shape after an iteration "
                f"({after[1]} after {before[1]}), and it has too many iterations, or a number of "
                "them that is no constant, to be written out"
            )
    ends_early = not _goes_on(node, graph, body)
    steps = None if ends_early else _steps(node, graph)
    for output, made in zip(node.output, body.outputs[1:], strict=True):
        shape = _dims(body, made, source)
        if made not in body.outputs[1 : 1 + count]:
            shape = (steps, *shape)
        graph.types[output] = helper.make_tensor_type_proto(body.elem_type(made), shape)
    kept = [*node.input[:2], *(values[name] for name in [*states, *fed])]
    key = node.output[0]
    graph.bodies[key] = body
    del node.input[:], node.attribute[:]
    node.input.extend(kept)
    form = {
        "body": key,
        "states": count,
        "steps": -1 if steps is None else steps,
        "ends_early": int(ends_early),
    }
    node.attribute.extend(helper.make_attribute(name, value) for name, value in form.items())


def _dims(graph: Graph, name: str, source: str) -> tuple[int | None, ...]:
    dims = graph.dims(name)
    if dims is None:
        raise UnsupportedOperatorError(
            f"{source}: the rank of {name!r}, which it reads or makes, is not known"
        )
    return dims


def _differ(one: tuple[int | None, ...] | None, other: tuple[int | None, ...] | None) -> bool:
    """Whether two shapes cannot be the same; open sizes are compared once they are expressions."""
    if one is None or other is None or len(one) != len(other):
        return True
    return any(a != b for a, b in zip(one, other, strict=True) if None not in (a, b))


def _goes_on(node: onnx.NodeProto, graph: Graph, body: Graph) -> bool:
    """Whether only the limit ends the loop."""
    conditions = graph.constants.get(node.input[1]), body.constants.get(body.outputs[0])
    return all(value is not None and bool(value.all()) for value in conditions)


def _steps(node: onnx.NodeProto, graph: Graph) -> int | None:
    """How often the body of a loop that goes on runs, None if that depends on data or sizes;
    ModelError if it never ends."""
    limit = graph.constants.get(node.input[0])
    if not node.input[0]:
        raise ModelError(
            f"Loop node {node.name!r} never ends: it has no limit, and its condition is always true"
        )
    return None if limit is None else int(np.maximum(limit, 0).item())
