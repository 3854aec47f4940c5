"""Parameters: inputs of nodes whose values decide what is computed, such as axes and shapes.

ReduceSum(x, axes) with axes = Add(a, 1) and the graph's inputs x, a: the value of a must be known.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import Argument, InputValueError

from .graph import CONTRIB_DOMAIN, STANDARD_DOMAINS, Graph, captured_names
from .node_builder import optional_input

# Positions among the inputs of an operator whose values the importer must know.
PARAMETERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "Split"), (1,)),
    **dict.fromkeys(("CenterCropPad", "AffineGrid", "Upsample", "TopK", "OneHot"), (1,)),
    **dict.fromkeys(("CumSum", "CumProd", "Trilu"), (1,)),
    **dict.fromkeys(("SequenceAt", "SequenceErase", "SplitToSequence"), (1,)),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    "ReduceSumSquare": (1,),
    "SequenceInsert": (2,),
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
SIZED_BY_DATA = {"NonZero", "Unique", "Compress", "NonMaxSuppression"}


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
        for parameter in parameters_of(each, graph)
        for source in _sources(parameter, graph)
    }
    needed = tuple(item.name for item in graph.inputs if item.name in {*inputs, *others})
    example: dict[str, object] = {}
    for each in needed:
        dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(each))
        example[each] = np.ones(graph.shape(each) or (), dtype).tolist()
    raise InputValueError(
        f"{node}: the value of its input {name!r} must be known when the model is "
        f"compiled, and comes from graph input {', '.join(map(repr, inputs))}; give values, "
        "for example ",
        Argument("values", value=example),
        ", or run the model by an InferenceSession, which compiles it for the values that arrive",
        inputs=needed,
    )


def parameters_of(node: onnx.NodeProto, graph: Graph) -> list[str]:
    """The inputs of a node whose values the importer must know."""
    positions = PARAMETERS.get(node.op_type, ()) if node.domain in _DOMAINS else ()
    if node.op_type == "Resize" and len(node.input) > 2:
        positions = positions[1:]  # the region is data; before opset 11, these are the scales
    training = graph.constants.get(optional_input(node, 2))
    if node.op_type == "Dropout" and (training is None or not training.any()):
        positions = positions[:1]  # the ratio does not count
    return [node.input[position] for position in positions if position < len(node.input)]


def note_inputs(graph: Graph) -> None:
    """Notes which inputs of a graph may be asked for; `note_node` goes on from there."""
    for item in graph.inputs:
        shape = graph.shape(item.name)
        small = shape is not None and len(shape) <= 1 and math.prod(shape) <= MOST_ELEMENTS
        graph.sources[item.name] = {item.name} if small else None


def note_node(node: onnx.NodeProto, graph: Graph) -> None:
    """Notes what the values of a node come from that stays as it is.

    Otherwise every shape of a dynamic model would be followed back through the whole graph.
    """
    found: set[str] | None = None if node.op_type in SIZED_BY_DATA else set()
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
            if maker.op_type in SIZED_BY_DATA:
                return []
            if maker.op_type in _SHAPES and value not in graph.types:
                continue  # it will be folded
            waiting += [*maker.input, *captured_names(maker)]
    return [item.name for item in graph.inputs if item.name in found]
