"""Parameters: inputs of nodes whose values decide what is computed, such as axes and shapes.

ReduceSum(x, axes) with axes = Add(a, 1) and the graph's inputs x, a: the value of a must be known.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import Argument, InputValueError

from .graph import CONTRIB_DOMAIN, STANDARD_DOMAINS, Graph, captured_names, describe

# Positions among the inputs of an operator whose values the importer must know.
PARAMETERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "Split"), (1,)),
    **dict.fromkeys(("CenterCropPad", "AffineGrid", "Upsample", "TopK", "OneHot"), (1,)),
    **dict.fromkeys(("CumSum", "CumProd", "Trilu"), (1,)),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    "ReduceSumSquare": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Range": (0, 1, 2),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "Dropout": (2, 1),
    "MaxUnpool": (2,),
    "Col2Im": (1, 2),
    "DFT": (1, 2),
    "STFT": (1, 3),
}
_DOMAINS = {*STANDARD_DOMAINS, CONTRIB_DOMAIN}
# How many elements an input may have whose value is asked for, a number or a vector: others hold
# data, which are others in every run.
MOST_ELEMENTS = 64
_SHAPES = {"Shape", "Size"}
# What comes from these has a size that only a run finds.
_SIZED_BY_DATA = {"NonZero", "Unique", "Compress", "NonMaxSuppression"}


def require_parameters(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuses a node whose parameters come from inputs of the graph.

    Raises
    ------
    InputValueError
        As `require_value`.
    """
    for name in _parameters(node, graph):
        require_value(describe(node), name, graph)


def require_value(node: str, name: str, graph: Graph) -> None:
    """Refuses a node whose input of this name depends on nothing but small inputs of the graph.

    Parameters
    ----------
    node
        The node in words.

    Raises
    ------
    InputValueError
        Naming these inputs, and all others that nodes of the model will need.
    """
    inputs = _sources(name, graph)
    if not inputs:
        return
    others = {
        source
        for each in graph.nodes
        for parameter in _parameters(each, graph)
        for source in _sources(parameter, graph)
    }
    needed = tuple(item.name for item in graph.inputs if item.name in {*inputs, *others})
    example = {name: _example(name, graph) for name in needed}
    raise InputValueError(
        f"{node}: the value of its input {name!r} must be known when the model is "
        f"compiled, and comes from graph input {', '.join(map(repr, inputs))}; give values, "
        "for example ",
        Argument("values", value=example),
        ", or run the model by an InferenceSession, which compiles it for the values that arrive",
        inputs=needed,
    )


def require_choice(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuses a node that fits nothing, if it is one of a branch that inputs choose.

    The branch may be for other shapes of inputs than those that are given.

    Raises
    ------
    InputValueError
        As `require_value`, of the branch's condition.
    """
    for prefix, condition, source in graph.choices:
        if node.name.startswith(prefix):
            require_value(source, condition, graph)


def _parameters(node: onnx.NodeProto, graph: Graph) -> list[str]:
    """The inputs of a node whose values the importer must know."""
    positions = PARAMETERS.get(node.op_type, ()) if node.domain in _DOMAINS else ()
    if node.op_type == "Resize" and len(node.input) > 2:
        positions = positions[1:]  # the region is data; before opset 11, these are the scales
    if node.op_type == "Dropout" and not _trains(node, graph):
        positions = positions[:1]  # the ratio does not count
    return [node.input[position] for position in positions if position < len(node.input)]


def _trains(node: onnx.NodeProto, graph: Graph) -> bool:
    """Whether a Dropout is known to be in training mode."""
    training = graph.constants.get(node.input[2]) if len(node.input) > 2 else None
    return training is not None and bool(training.any())


def note_inputs(graph: Graph) -> None:
    """Notes which inputs of a graph may be asked for; `note_node` goes on from there."""
    for item in graph.inputs:
        graph.sources[item.name] = {item.name} if _is_small(item.name, graph) else None


def note_node(node: onnx.NodeProto, graph: Graph) -> None:
    """Notes what the values of a node come from that stays as it is.

    Otherwise every shape of a dynamic model would be followed back through the whole graph.
    """
    found: set[str] | None = None if node.op_type in _SIZED_BY_DATA else set()
    for name in (*node.input, *captured_names(node)):
        known = set() if name in graph.constants else graph.sources.get(name, set())
        found = None if found is None or known is None else found | known
    for name in node.output:
        will_be_folded = node.op_type in _SHAPES and name not in graph.types
        graph.sources[name] = set() if will_be_folded else found


def _sources(name: str, graph: Graph) -> list[str]:
    """The graph inputs that a value is computed from; none if one of them is too large, or if they
    are those of a loop's body."""
    if graph.is_body:
        return []
    waiting, seen = [name], {""}
    found: set[str] = set()
    while waiting:
        value = waiting.pop()
        if value in seen or value in graph.constants:
            continue
        seen.add(value)
        if value in graph.sources:
            known = graph.sources[value]
            if known is None:
                return []
            found |= known
            continue
        maker = graph.makers.get(value)
        if maker is not None:
            if maker.op_type in _SIZED_BY_DATA:
                return []
            if maker.op_type in _SHAPES and value not in graph.types:
                continue  # it will be folded
            waiting += [*maker.input, *captured_names(maker)]
    return [item.name for item in graph.inputs if item.name in found]


def _is_small(name: str, graph: Graph) -> bool:
    shape = graph.shape(name)
    return shape is not None and len(shape) <= 1 and math.prod(shape) <= MOST_ELEMENTS


def _example(name: str, graph: Graph) -> object:
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(name))
    return np.ones(graph.shape(name) or (), dtype).tolist()
