"""Computes a node whose inputs are all constant, by NumPy or ONNX's reference implementation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
from onnx import helper

from .cast_constants import cast
from .graph import Graph, is_standard, static_shape, subgraphs
from .half_converters import BFLOAT16, FLOAT16, SUMMING
from .node_builder import attributes_of
from .plain_operators import PLAIN_OPERATORS
from .quantize_constants import dequantize_linear, dynamic_quantize_linear, quantize_linear

logger = logging.getLogger("tvm_hybrid")

# Beyond this a folded value must not be much larger than what it was made from: a mask of a
# megabyte is better precomputed, a broadcast of a whole weight is not.
MAX_FOLDED_BYTES = 1 << 20
MAX_GROWTH = 4

# Control flow, and what the reference computes by another order of roundings than we do, or by the
# defaults of the newest opset.
_KEPT = {"Loop", "If", "Scan", "Constant", "Resize", "RoiAlign", "Upsample"}
# Of no elements they are 0 / 0: relay_passes/canonicalize/fold_empty.py says what that is.
_AVERAGES = {"ReduceMean", "GlobalAveragePool"}
# Operators whose output shape depends on values, but is no larger than the input times its rank.
_BOUNDED = {"NonZero", "Compress", "Unique", "Slice", "Gather", "Squeeze", "Unsqueeze", "Reshape"}


def _divide(node: onnx.NodeProto, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Division as ONNX defines it: towards zero for integers (the reference rounds down)."""
    if not np.issubdtype(left.dtype, np.integer):
        with np.errstate(all="ignore"):
            return np.divide(left, right)
    if not np.all(right):
        raise ZeroDivisionError("integer division by zero")
    quotient = np.abs(left) // np.abs(right)
    return (quotient * (np.sign(left) * np.sign(right))).astype(left.dtype)


def _gather_elements(node: onnx.NodeProto, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """GatherElements where the indices are smaller than the data (the reference fails there)."""
    axis = attributes_of(node).get("axis", 0) % data.ndim
    cut = tuple(
        slice(None) if position == axis else slice(extent)
        for position, extent in enumerate(indices.shape)
    )
    return np.take_along_axis(data[cut], indices, axis)


_CORRECTED: dict[str, Callable[..., np.ndarray | list[np.ndarray]]] = {
    "Cast": cast,
    "DequantizeLinear": dequantize_linear,
    "Div": _divide,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "GatherElements": _gather_elements,
    "QuantizeLinear": quantize_linear,
}


def evaluate(
    node: onnx.NodeProto, graph: Graph, types: dict[str, onnx.TypeProto]
) -> list[np.ndarray] | None:
    """The outputs of a node, or None if they are not constant or not worth storing.

    Parameters
    ----------
    types
        The inferred types of the node's outputs, by which size and dtype are judged.
    """
    if not is_standard(node) or node.op_type in _KEPT or any(True for _ in subgraphs(node)):
        return None
    if any(name and name not in graph.constants for name in node.input):
        return None
    if node.op_type == "DequantizeLinear" and _is_weight(graph.constants[node.input[0]]):
        return None
    if node.op_type in _AVERAGES and not graph.constants[node.input[0]].size:
        return None
    if not _deterministic(node.op_type, graph.opset) or not _small_enough(node, graph, types):
        return None
    try:
        results = _run(node, graph)
    except Exception as error:  # whatever the reference raises, the node is merely not folded
        logger.debug("cannot fold %s node %r: %s", node.op_type, node.name, error)
        return None
    arrays = []
    for name, result in zip(node.output, results, strict=False):
        elem_type = types[name].tensor_type.elem_type if name in types else 0
        if not isinstance(result, np.ndarray | np.generic) or not elem_type:
            return None
        array = np.asarray(result, dtype=helper.tensor_dtype_to_np_dtype(elem_type))
        expected = static_shape(types[name])
        if expected is not None and expected != array.shape:
            return None
        arrays.append(array)
    return arrays if len(arrays) == len(node.output) else None


def _run(node: onnx.NodeProto, graph: Graph) -> list[np.ndarray]:
    own = _CORRECTED.get(node.op_type) or PLAIN_OPERATORS.get(node.op_type)
    if own is not None:
        inputs = (graph.constants[name] if name else None for name in node.input)
        with np.errstate(all="ignore"):
            results = own(node, *inputs)
        return results if isinstance(results, list) else [results]
    from onnx.reference import ReferenceEvaluator

    feeds = {name: graph.constants[name] for name in node.input if name}
    if node.op_type in SUMMING:  # the caller rounds the result
        feeds = {name: _widened(array) for name, array in feeds.items()}
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(_model_of(node, feeds, graph.opset)).run(None, feeds)


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.name in (BFLOAT16, FLOAT16) else array


def _model_of(node: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int) -> onnx.ModelProto:
    """A model of one node: the reference takes a bare node for one of the newest opset."""
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    body = helper.make_graph([node], "folded", inputs, outputs)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)])


def _is_weight(array: np.ndarray) -> bool:
    """Whether a quantised constant is what products read, and not a bias, a scalar or a vector.

    Dequantised weights stay as they are, those of one row or column too: the low-precision passes
    want the integers.
    """
    return array.dtype.itemsize < 4 and array.ndim > 1 and array.size > 1


@cache
def _deterministic(op_type: str, opset: int) -> bool:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    # Sequence and optional results are no arrays.
    kinds = [kind for output in schema.outputs for kind in output.types]
    tensors = all(kind.startswith("tensor(") for kind in kinds) or op_type == "Identity"
    random = op_type.startswith("Random") or op_type in ("Bernoulli", "Multinomial")
    return tensors and not random


def _small_enough(node: onnx.NodeProto, graph: Graph, types: dict[str, onnx.TypeProto]) -> bool:
    read = sum(graph.constants[name].nbytes for name in node.input if name)
    limit = max(MAX_FOLDED_BYTES, MAX_GROWTH * read)
    for name in node.output:
        shape = static_shape(types[name]) if name in types else None
        if shape is None:
            if node.op_type not in _BOUNDED:
                return False
        else:
            itemsize = helper.tensor_dtype_to_np_dtype(types[name].tensor_type.elem_type).itemsize
            if math.prod(shape) * itemsize > limit:
                return False
    return True
