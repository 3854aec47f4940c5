"""Computes one ONNX node with onnx's reference, or with ONNX Runtime if onnx has no reference.

Recurrent layers have a separate reference.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx_builder import CONTRIB
from tvm_hybrid.bench.peers.onnx_runtime import literal_session, outputs_of
from tvm_hybrid.report.timing import ContestantError

from .recurrent_reference import GATES, recurrent_results

Array = NDArray[Any]


class NodeError(Exception):
    """No reference computes a node."""


def run_node(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """Computes all outputs of a node.

    Parameters
    ----------
    node : onnx.NodeProto
        An operator of ONNX, or of ONNX Runtime.
    inputs : sequence of numpy.ndarray or None
        None for missing inputs. Floats may be wider than the node's types.
    opset : int
        The version of ONNX's operators.

    Raises
    ------
    NodeError
        If the node is not valid, or no reference knows it.
    """
    given = {
        name: array for name, array in zip(node.input, inputs, strict=True) if array is not None
    }
    text = node.SerializeToString()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if node.op_type in GATES:
            try:
                return recurrent_results(node, inputs)
            except (IndexError, ValueError) as error:  # shapes that do not fit
                raise NodeError(str(error)) from error
        try:
            results = _reference(text, _right_since(node, opset)).run(None, given)
        except Exception:  # any error of NumPy, or an operator that the reference lacks
            results = _by_runtime(text, given, opset)
    arrays = [np.asarray(result) for result in results]
    if node.op_type == "GatherElements":  # the reference turns bfloat16 into float32
        arrays = [arrays[0].astype(given[node.input[0]].dtype)]
    if node.op_type == "PRelu":  # the reference multiplies 0 by the slope, which may be NaN
        x = given[node.input[0]]
        arrays = [np.where(x == 0, x, arrays[0]).astype(arrays[0].dtype)]
    if node.op_type == "GlobalMaxPool":  # the reference supports only images
        x = given[node.input[0]]
        arrays = [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]
    if any(array.dtype.kind not in "biufV" for array in arrays):
        raise NodeError("a result is not a numeric tensor")
    return arrays


def _right_since(node: onnx.NodeProto, opset: int) -> int:
    """First opset with a correct reference: before opset 14 its BatchNormalization trains."""
    return max(opset, 14) if node.op_type == "BatchNormalization" else opset


@functools.lru_cache(512)
def _reference(text: bytes, opset: int) -> ReferenceEvaluator:
    node = onnx.NodeProto.FromString(text)
    inputs = [
        helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(node.input) if name
    ]
    return ReferenceEvaluator(_model(node, inputs, opset))


def _model(
    node: onnx.NodeProto, inputs: Sequence[onnx.ValueInfoProto], opset: int
) -> onnx.ModelProto:
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _by_runtime(text: bytes, given: dict[str, Array], opset: int) -> list[Array]:
    """Runs a node with ONNX Runtime, which lacks such operators in float64: it gets float32."""
    narrow = {
        name: array.astype(np.float32) if array.dtype == np.float64 else array
        for name, array in given.items()
    }
    kinds = tuple(
        (name, helper.np_dtype_to_tensor_dtype(array.dtype)) for name, array in narrow.items()
    )
    try:
        return outputs_of(_session(text, kinds, opset), narrow)
    except ContestantError as error:
        raise NodeError(str(error)[:200]) from error


@functools.lru_cache(128)
def _session(text: bytes, kinds: tuple[tuple[str, int], ...], opset: int) -> Any:
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds]
    return literal_session(_model(onnx.NodeProto.FromString(text), inputs, opset))
