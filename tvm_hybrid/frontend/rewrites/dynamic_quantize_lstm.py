"""ONNX Runtime's LSTM with 8-bit weights.

    DynamicQuantizeLSTM(X, W, R, B, ..., W_scale, W_zero_point, R_scale, R_zero_point)
        ->  DynamicQuantizeMatMul(X, W of all directions),
            Recurrent(..., R - R_zero_point, R_scale)

W is [directions, input, 4 * hidden] here, so that of one direction is not transposed. The input is
quantised once for all steps, the hidden state in every step, each sequence by itself (ONNX Runtime
quantises as many rows at once as one of its threads has). R is of bytes if it is constant and its
differences from the zero points are bytes, else of words.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import optional_input
from .quantized import MICROSOFT
from .recurrent import written
from .recurrent_layer import R, Recurrent, W
from .registry import rewrites

_PARAMETERS = {W: (8, 9), R: (10, 11)}  # positions of scale and zero point


class _Quantized(Recurrent):
    """Products with 8-bit weights."""

    def recurrence(self) -> dict[str, str]:
        """Inputs of `Recurrent`: R [directions, 4 * hidden, hidden] of integers, and its scales."""
        build, name = self.build, self.node.input[R]
        scales, zero_points = (self._of_columns(R, position) for position in _PARAMETERS[R])
        known = build.graph.constants.get(name)
        offsets = build.graph.constants.get(zero_points) if zero_points else np.zeros(1, np.int8)
        if known is not None and offsets is not None:
            numbers = known.astype(np.int16) - offsets.reshape(-1, 1, offsets.shape[-1])
            rows = np.ascontiguousarray(numbers.transpose(0, 2, 1))
            fits = rows.min() >= -128 and rows.max() <= 127
            return {"weight": build.constant(rows, np.int8 if fits else np.int16), "scales": scales}
        computed = build.add("Cast", name, to=TensorProto.INT32)
        if zero_points:
            shape = [self.directions, 1, self.gates * self.hidden]
            offset = build.add("Cast", build.reshape(zero_points, shape), to=TensorProto.INT32)
            computed = build.add("Sub", computed, offset)
        words = build.add("Cast", computed, to=TensorProto.INT16)
        return {"weight": build.add("Transpose", words, perm=[0, 2, 1]), "scales": scales}

    def input_product(self, rows: str) -> str:
        """Rows of inputs by W of all directions, [rows, directions * 4 * hidden]."""
        build, width = self.build, self.directions * self.gates * self.hidden
        weight = self.node.input[W]
        size = (build.graph.shape(weight) or (0,))[self.input_axis]
        if self.directions > 1:
            weight = build.add("Transpose", weight, perm=[1, 0, 2])
        given = [build.reshape(weight, [size, width])]
        for position in _PARAMETERS[W]:
            name = self._of_columns(W, position)
            given.append(build.reshape(name, [width]) if name else "")
        return build.add("DynamicQuantizeMatMul", rows, *given, domain=MICROSOFT)

    def _of_columns(self, weight: int, position: int) -> str:
        """A weight's scales or zero points, [directions, columns]; "" if they are absent."""
        name, graph = optional_input(self.node, position), self.build.graph
        if not name:
            return ""
        width = self.gates * self.hidden
        shape, what = graph.shape(name), "scale" if position in (8, 10) else "zero point"
        if shape is None:
            raise UnsupportedOperatorError(
                f"{describe(self.node)}: the shape of its {what} {name!r} is not known"
            )
        if shape == (self.directions, width):
            return name
        if shape != (self.directions,):
            raise ModelError(
                f"{describe(self.node)}: a {what} of shape {shape} for a weight of shape "
                f"{graph.shape(self.node.input[weight])}; there is one for each direction, or for "
                "each of its columns"
            )
        array = graph.constants.get(name)
        if array is not None:
            return self.build.constant(np.repeat(array[:, None], width, axis=1))
        rows = self.build.reshape(name, [self.directions, 1])
        return self.build.add("Expand", rows, self.build.shape([self.directions, width]))


@rewrites("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator."""
    return written(node, graph, "lstm", _Quantized, hidden_axis=1)
