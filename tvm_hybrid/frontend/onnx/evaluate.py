"""Folds a node whose inputs are constant, by NumPy or ONNX's reference implementation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from relay_passes.ir.quantization import along_axis

from ..expressions import Expr, constant, literal
from .graph.graph import Graph, is_standard, static_shape, subgraphs
from .graph.narrow_types import FLOATS
from .graph.node_builder import attributes_of
from .operators import BFLOAT16, FLOAT16, SOFTMAX_ALONG_AXIS, SUMMING, apply

# Quantising and dequantising constants as ONNX's text defines it; the front end folds with these.
#
# ONNX's reference differs: it overflows beyond int32, has no DequantizeLinear before opset 19, and
# gives an all-zero tensor the scale 1 / 255, where the text does not define the scale and ONNX
# Runtime uses 1.


def quantize_linear(
    x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None = None, **attributes: Any
) -> np.ndarray:
    """QuantizeLinear per tensor or per axis: saturate(round_half_even(x / scale) + zero_point)."""
    code = attributes.get("output_dtype") or TensorProto.UINT8
    dtype = helper.tensor_dtype_to_np_dtype(code)
    dtype = dtype if zero_point is None else zero_point.dtype
    if attributes.get("block_size"):
        raise ValueError("quantising in blocks is not supported")
    axis = 0 if x.ndim == 1 else attributes.get("axis", 1)
    step = along_axis(scale.astype(np.float32), x.ndim, axis)
    offset = 0 if zero_point is None else along_axis(zero_point.astype(np.float64), x.ndim, axis)
    limits = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        # A float64 sum is exact here: no rounding after that of the quotient.
        value = np.rint(x.astype(np.float32) / step).astype(np.float64) + offset
    return np.clip(np.nan_to_num(value), limits.min, limits.max).astype(dtype)


def dequantize_linear(
    q: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None = None, **attributes: Any
) -> np.ndarray:
    """DequantizeLinear per tensor or per axis: (q - zero_point) * scale, rounded to float32."""
    if attributes.get("block_size"):
        raise ValueError("blocks stay as they are")
    axis = 0 if q.ndim == 1 else attributes.get("axis", 1)
    offset = 0 if zero_point is None else along_axis(zero_point.astype(np.int64), q.ndim, axis)
    difference = (q.astype(np.int64) - offset).astype(np.float32)
    value = difference * along_axis(scale.astype(np.float32), q.ndim, axis)
    code = attributes.get("output_dtype", 0)
    return value.astype(helper.tensor_dtype_to_np_dtype(code) if code else scale.dtype)


def dynamic_quantize_linear(x: np.ndarray) -> list[np.ndarray]:
    """DynamicQuantizeLinear: the quantised tensor, its scale and its zero point."""
    zero = np.float32(0)
    high = np.maximum(x.max(initial=0), zero, dtype=np.float32)
    low = np.minimum(x.min(initial=0), zero, dtype=np.float32)
    scale = np.asarray((high - low) / np.float32(255) or np.float32(1), np.float32)
    offset = np.asarray(np.clip(np.rint(-low / scale), 0, 255), np.uint8)
    q = np.clip(np.rint(x / scale) + np.float32(offset), 0, 255).astype(np.uint8)
    return [q, scale, offset]


# Casts constants exactly as kernels do (`microkernels.vector.ieee.convert`).
#
# NumPy's result for a float beyond the integer type depends on the CPU's instruction, which may
# differ between vectors and single elements.


def cast(x: np.ndarray, *, to: int, **_: Any) -> np.ndarray:
    """Cast of a constant."""
    dtype = helper.tensor_dtype_to_np_dtype(to)
    if dtype.kind not in "iu" or x.dtype.kind in "iub":
        with np.errstate(all="ignore"):
            return x.astype(dtype)
    if x.dtype == np.float16 and dtype == np.uint32:
        x = np.where(np.isfinite(x), x, 0)
    # The low bits of an int32 or an int64; the kernels use the one or the other.
    x = x.astype(np.float64)
    if dtype not in (np.uint32, np.uint64):
        wide = np.int64 if dtype == np.int64 else np.int32
        return _signed(x, wide).astype(dtype)
    half = 2.0 ** (8 * dtype.itemsize - 1)
    above = x >= half
    low = _signed(np.where(above, x - half, x), np.int32 if dtype == np.uint32 else np.int64)
    return low.view(dtype) ^ np.where(above, np.uint64(half), np.uint64(0)).astype(dtype)


def _signed(x: NDArray[np.float64], dtype: type[np.signedinteger]) -> np.ndarray:
    """Rounds towards zero; a value beyond the type gives the type's least integer."""
    limits = np.iinfo(dtype)
    whole = np.trunc(x)
    inside = (whole >= float(limits.min)) & (whole < -float(limits.min))
    return np.where(inside, np.where(inside, whole, 0).astype(dtype), dtype(limits.min))


logger = logging.getLogger("tvm_hybrid")

# A larger folded value must not be much larger than the constants it is computed from: a mask of a
# megabyte is better precomputed, a broadcast of a whole weight is not.
MAX_FOLDED_BYTES = 1 << 20
MAX_GROWTH = 4

# Not folded: control flow, operators that the reference rounds in another order than we do or
# computes by the newest opset's defaults, and those that may draw random numbers.
_KEPT = {
    *("Constant", "DFT", "Dropout", "If", "Loop", "Resize", "RoiAlign", "STFT", "Scan", "Upsample"),
    *("GRU", "LSTM", "QLinearConv", "QLinearMatMul", "RNN"),
}
# They convert from or to narrow types; a narrow float's constant only holds its bits.
_OF_NARROW = {"Cast", "DequantizeLinear", "QuantizeLinear"}
# The reference computes the old opset's form as if it were the new one.
_OF_SEVERAL_AXES = {"Softmax", "LogSoftmax", "Hardmax"}
# Without elements they give 0 / 0: relay_passes/canonicalize/constants.py defines the result.
_AVERAGES = {"ReduceMean", "GlobalAveragePool"}
# Operators whose output shape depends on values, but is no larger than the input times its rank.
_BOUNDED = {"NonZero", "Compress", "Unique", "Slice", "Gather", "Squeeze", "Unsqueeze", "Reshape"}


def _divide(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Divides as ONNX defines it; integers are rounded towards zero."""
    if not np.issubdtype(left.dtype, np.integer):
        with np.errstate(all="ignore"):
            return np.divide(left, right)
    if not np.all(right):
        raise ZeroDivisionError("integer division by zero")
    # ONNX's reference implementation rounds down.
    quotient = np.abs(left) // np.abs(right)
    return (quotient * (np.sign(left) * np.sign(right))).astype(left.dtype)


def _gather_elements(data: np.ndarray, indices: np.ndarray, *, axis: int = 0) -> np.ndarray:
    """GatherElements; the reference fails if the indices have fewer elements than the data."""
    axis %= data.ndim
    cut = [*map(slice, indices.shape)]
    cut[axis] = slice(None)
    return np.take_along_axis(data[tuple(cut)], indices, axis)


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
    """The outputs of a node; None if they are not constant or not worth storing.

    Parameters
    ----------
    types
        The inferred types of the node's outputs; they decide on size and dtype.
    """
    if not is_standard(node) or node.op_type in _KEPT or any(True for _ in subgraphs(node)):
        return None
    if any(name and name not in graph.constants for name in node.input):
        return None
    if node.op_type in _OF_SEVERAL_AXES and graph.opset < SOFTMAX_ALONG_AXIS:
        return None
    if node.op_type == "DequantizeLinear" and _is_weight(graph.constants[node.input[0]]):
        return None
    # Arrays hold narrow integers by value, but narrow floats by their bits.
    narrow = [graph.narrow.get(name) in FLOATS for name in node.input]
    if node.op_type in _OF_NARROW and (any(narrow) or node.output[0] in graph.narrow):
        return None
    if node.op_type in _AVERAGES and not graph.constants[node.input[0]].size:
        return None
    if not _deterministic(node.op_type, graph.opset) or not _small_enough(node, graph, types):
        return None
    try:
        results = _run(node, graph)
    except Exception as error:  # any error of the reference only means that the node is not folded
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
            results = own(*inputs, **attributes_of(node))
        return results if isinstance(results, list) else [results]
    from onnx.reference import ReferenceEvaluator

    feeds = {name: graph.constants[name] for name in node.input if name}
    # A model of one node, because the reference gives a bare node the newest opset.
    declared = []
    for name, array in feeds.items():
        if node.op_type in SUMMING and array.dtype.name in (BFLOAT16, FLOAT16):
            feeds[name] = array = array.astype(np.float32)  # the caller rounds the result
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        declared.append(helper.make_tensor_value_info(name, kind, array.shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    body = helper.make_graph([node], "folded", declared, outputs)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", graph.opset)])
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)


def computed(op_type: str, *inputs: Expr, **attrs: Any) -> Expr:
    """Applies one of `PLAIN_OPERATORS`, or Div, to expressions; folds it if all are constant."""
    arrays = [array for array in map(constant, inputs) if array is not None]
    if len(arrays) < len(inputs):
        return apply(op_type, *inputs, **attrs)
    own = _divide if op_type == "Div" else PLAIN_OPERATORS[op_type]
    with np.errstate(all="ignore"):
        return literal(np.asarray(own(*arrays, **attrs)))


def _is_weight(array: np.ndarray) -> bool:
    """Whether a quantised constant is a weight of a product, not a bias, a scalar or a vector."""
    # Dequantized weights are not folded, even of one row or column: the low-precision passes need
    # the integers.
    return array.dtype.itemsize < 4 and array.ndim > 1 and array.size > 1


@cache
def _deterministic(op_type: str, opset: int) -> bool:
    if not onnx.defs.has(op_type, opset):
        return False
    schema = onnx.defs.get_schema(op_type, opset)
    # Sequence and optional results are not arrays.
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


# Operators that NumPy computes as ONNX defines them, in every opset.
#
# Graphs that compute shapes and masks consist of them. The reference implementation has them too,
# but importing it takes 8 MB and most of a second.


def _constant_of_shape(shape: np.ndarray, *, value: Any = None) -> np.ndarray:
    filled = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    return np.full(tuple(shape), filled.reshape(()))


def _expand(data: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(shape))).copy()


OF_TWO = {
    **{name: name.lower() for name in ("Add", "Equal", "Greater", "Less")},
    **{name: f"logical_{name.lower()}" for name in ("And", "Or", "Xor")},
    **{f"Bitwise{name}": f"bitwise_{name.lower()}" for name in ("And", "Or", "Xor")},
    **{"GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal"},
    **{"Mul": "multiply", "Sub": "subtract"},
}
"""Operators with two operands -> (NumPy's function, Relax's operator)."""
PLAIN_OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, own) for name, own in OF_TWO.items()},
    "Concat": lambda *inputs, axis: np.concatenate(inputs, axis),
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Gather": lambda data, indices, *, axis=0: np.take(data, indices, axis),
    "Identity": lambda data: data,
    "Not": np.logical_not,
    "Transpose": lambda data, *, perm=None: data.transpose(perm),
    "Where": np.where,
}
