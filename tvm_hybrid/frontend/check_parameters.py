"""Parameters with which an operator means nothing, and which ONNX's inference lets pass.

operator          refused
DepthToSpace      channels that are no whole blocks
GatherElements    more indices than data, along another axis than that of the choice
GatherND          other batches of indices than of data
NonMaxSuppression other numbers of boxes than of scores
OneHot            other values than two
Range             a step of 0, or limits between which it does not end
Resize, Upsample  a scale that is 0, negative or not finite; a negative size
Split             a negative size

Sizes that are dynamic are checked when the program runs (data_sized/input_checks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from microkernels.base.errors import ShapeError

from .graph import Graph, describe, is_standard
from .node_builder import attributes_of, constant_or_attribute, optional_input

Check = Callable[[onnx.NodeProto, Graph], str | None]


def check_parameters(node: onnx.NodeProto, graph: Graph) -> None:
    """Refuses a node by what is known of its inputs and attributes.

    Raises
    ------
    ShapeError
        Naming the node, and what is wrong.
    """
    check = _CHECKS.get(node.op_type) if is_standard(node) else None
    wrong = None if check is None else check(node, graph)
    if wrong is not None:
        raise ShapeError(f"{describe(node)}: {wrong}; mend the model, or the inputs given")


def _depth_to_space(node: onnx.NodeProto, graph: Graph) -> str | None:
    dims, size = graph.dims(node.input[0]), attributes_of(node)["blocksize"]
    channels = None if dims is None or len(dims) != 4 else dims[1]
    if channels is None or size < 1 or channels % size**2 == 0:
        return None
    return f"its {channels} channels are no blocks of {size} x {size}"


def _gather_elements(node: onnx.NodeProto, graph: Graph) -> str | None:
    data, indices = (graph.dims(name) for name in node.input[:2])
    if data is None or indices is None or len(data) != len(indices):
        return None
    axis = attributes_of(node).get("axis", 0) % len(data)
    for place, (size, count) in enumerate(zip(data, indices, strict=True)):
        if place != axis and size is not None and count is not None and count > size:
            return f"its indices {indices} are more than its data {data} along axis {place}"
    return None


def _gather_nd(node: onnx.NodeProto, graph: Graph) -> str | None:
    data, indices = (graph.dims(name) for name in node.input[:2])
    batches = attributes_of(node).get("batch_dims", 0)
    if data is None or indices is None or not _differ(data[:batches], indices[:batches]):
        return None
    return f"the batches of its indices {indices} are not those of its data {data}"


def _non_max_suppression(node: onnx.NodeProto, graph: Graph) -> str | None:
    boxes, scores = (graph.dims(name) for name in node.input[:2])
    if boxes is None or scores is None or len(boxes) != 3 or len(scores) != 3:
        return None
    if not _differ(boxes[:2], (scores[0], scores[2])):
        return None
    return f"its boxes {boxes} are not those of its scores {scores}"


def _one_hot(node: onnx.NodeProto, graph: Graph) -> str | None:
    dims = graph.dims(node.input[2])
    return f"its values {dims} are not two" if dims is not None and _differ(dims, (2,)) else None


def _differ(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """Whether sizes are known to differ."""
    if len(one) != len(other):
        return True
    pairs = zip(one, other, strict=True)
    return any(None not in (a, b) and a != b for a, b in pairs)


def _range(node: onnx.NodeProto, graph: Graph) -> str | None:
    start, limit, step = (graph.constants.get(name) for name in node.input)
    if step is not None and step.item() == 0:
        return "its step is 0"
    known = [float(each.item()) for each in (start, limit, step) if each is not None]
    if not np.isfinite(known).all():
        return f"its limits and its step are not all finite: {known}"
    return None


def _resize(node: onnx.NodeProto, graph: Graph) -> str | None:
    place = 2 if node.op_type == "Resize" and len(node.input) > 2 else 1
    scales = constant_or_attribute(node, graph, place, "scales")
    sizes = graph.constants.get(optional_input(node, 3))
    if scales is not None and not all(0 < scale < np.inf for scale in np.asarray(scales).flat):
        return f"its scales {np.asarray(scales).tolist()} are not all positive numbers"
    if sizes is not None and (sizes < 0).any():
        return f"its sizes {sizes.tolist()} are not all sizes"
    return None


def _split(node: onnx.NodeProto, graph: Graph) -> str | None:
    sizes = constant_or_attribute(node, graph, 1, "split")
    if sizes is not None and any(size < 0 for size in sizes):
        return f"its sizes {list(map(int, sizes))} are not all sizes"
    return None


_CHECKS: dict[str, Check] = {
    "DepthToSpace": _depth_to_space,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonMaxSuppression": _non_max_suppression,
    "OneHot": _one_hot,
    "Range": _range,
    "Resize": _resize,
    "Split": _split,
    "Upsample": _resize,
}
