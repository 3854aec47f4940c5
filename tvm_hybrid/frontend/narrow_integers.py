"""Constants of 2 or 4 bits per element, kept as 8-bit arrays.

NumPy and TVM have no arrays of such elements. The values are only dequantised, which gives the same
result from 8 bits. Where the width matters (a zero point gives the type to quantise to), a rewrite
finds it in Graph.narrow.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from .graph import Graph

NARROW = {
    TensorProto.INT2: np.int8,
    TensorProto.UINT2: np.uint8,
    TensorProto.INT4: np.int8,
    TensorProto.UINT4: np.uint8,
}


def array_of(tensor: onnx.TensorProto, name: str, graph: Graph) -> np.ndarray:
    """The array of a tensor; one of a narrow type is widened, and noted in the graph as `name`."""
    array = numpy_helper.to_array(tensor)
    wide = NARROW.get(tensor.data_type)
    if wide is None:
        return array
    graph.narrow[name] = tensor.data_type
    return array.astype(wide)
