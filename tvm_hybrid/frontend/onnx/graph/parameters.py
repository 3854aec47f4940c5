"""Parameters: inputs of nodes that decide what is computed, such as axes and shapes.

ReduceSum(x, axes) with axes = Add(a, 1) and graph inputs x, a: the value of a must be known.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import Argument, InputValueError

from .graph import CONTRIB_DOMAIN, STANDARD_DOMAINS, Graph, captured_names
from .node_builder import optional_input

# Positions of the inputs whose values the importer must know, by operator.
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
# Only inputs of at most this many elements, scalars or vectors, are asked for: larger ones hold
# data, which change in every run.
MOST_ELEMENTS = 64
_SHAPES = {"Shape", "Size"}
# Values computed from these have sizes that are only known at run time.
SIZED_BY_DATA = {"NonZero", "Unique", "Compress", "NonMaxSuppression"}


def require_value(node: str, name: str, graph: Graph) -> None:
    """Refuses a node if this input of it is computed from small inputs of the graph only.

    Parameters
    ----------
    node
        The node's description, for the message.

    Raises
    ------
    InputValueError
        The error names these inputs, and all others that nodes of the model will need.
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
    """Notes the graph inputs whose values may be asked for; `note_node` continues from there."""
    for item in graph.inputs:
        shape = graph.shape(item.name)
        small = shape is not None and len(shape) <= 1 and math.prod(shape) <= MOST_ELEMENTS
        graph.sources[item.name] = {item.name} if small else None


def note_node(node: onnx.NodeProto, graph: Graph) -> None:
    """Notes the inputs that the outputs of a converted node are computed from.

    Without this, every shape of a dynamic model would be followed back through the whole graph.
    """
    found: set[str] | None = None if node.op_type in SIZED_BY_DATA else set()
    for name in (*node.input, *captured_names(node)):
        known = set() if name in graph.constants else graph.sources.get(name, set())
        found = None if found is None or known is None else found | known
    for name in node.output:
        will_be_folded = node.op_type in _SHAPES and name not in graph.types
        graph.sources[name] = set() if will_be_folded else found


def _sources(name: str, graph: Graph) -> list[str]:
    """The graph inputs that a value is computed from; empty if one of them is too large, or the
    graph is the body of a loop."""
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
