"""Constants of 2 or 4 bits per element, kept as 8-bit arrays.

Such values only ever are dequantised, which gives the same of 8 bits; numpy and TVM have no
arrays of them. Where the width matters (a zero point that says what to quantise to) a rewrite
finds it in Graph.narrow.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from .graph import Graph

NARROW = {
    TensorProto.INT2: np.int8,
    TensorProto.UINT2: np.uint8,
    TensorProto.INT4: np.int8,
    TensorProto.UINT4: np.uint8,
}


def array_of(tensor: onnx.TensorProto, name: str, graph: Graph) -> NDArray:
    """The array of a tensor; one of a narrow type is widened, and noted in the graph as `name`."""
    array = numpy_helper.to_array(tensor)
    wide = NARROW.get(tensor.data_type)
    if wide is None:
        return array
    graph.narrow[name] = tensor.data_type
    return array.astype(wide)
