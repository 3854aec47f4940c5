"""Runs an ONNX model of quantised operators by the reference arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper, numpy_helper

from .arithmetic import Array
from .operators import OPERATORS, Value, real


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Computes the outputs of a model.

    The result of DequantizeLinear stays integer until an operator needs floats; a matrix product of
    two such values is an integer product (see `arithmetic.matmul`).

    Parameters
    ----------
    model : onnx.ModelProto
        A model of the operators in `OPERATORS`.
    feeds : mapping from str to numpy.ndarray
        Input name -> value.

    Raises
    ------
    KeyError
        If the model has another operator.
    """
    values: dict[str, Value] = {
        item.name: numpy_helper.to_array(item) for item in model.graph.initializer
    }
    values.update(feeds)
    for node in model.graph.node:
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        inputs = [values[name] if name else None for name in node.input]
        operator = OPERATORS[node.domain.replace("ai.onnx", ""), node.op_type]
        results = operator(inputs, attributes)
        if not isinstance(results, tuple):
            results = (results,)
        values.update(zip(node.output, results, strict=False))
    return [real(values[item.name]) for item in model.graph.output]
