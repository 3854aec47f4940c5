"""The array in a Constant node."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from .graph import Graph, describe


def constant_value(node: onnx.NodeProto, graph: Graph) -> np.ndarray:
    """The array in a Constant node."""
    if len(node.attribute) != 1 or len(node.output) != 1:
        raise ModelError(f"{describe(node)} must have one attribute and one output")
    attribute = node.attribute[0]
    value = helper.get_attribute_value(attribute)
    try:
        if attribute.name == "value":
            return numpy_helper.to_array(value)
        if attribute.name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
        if attribute.name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
    except Exception as error:  # numpy's and onnx's own, of many kinds
        raise ModelError(f"{describe(node)}: its data do not fit its shape: {error}") from error
    raise UnsupportedOperatorError(
        f"{describe(node)}: a constant given as {attribute.name!r} is not supported"
    )
