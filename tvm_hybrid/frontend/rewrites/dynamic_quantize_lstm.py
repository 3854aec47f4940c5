"""ONNX Runtime's LSTM with 8-bit weights, its time steps written out.

    DynamicQuantizeLSTM(X, W, R, B, ..., W_scale, W_zero_point, R_scale, R_zero_point)
        ->  the steps of LSTM, with DynamicQuantizeMatMul in place of MatMul

W is [directions, input, 4 * hidden] here, so nothing is transposed. The input is quantised once for
all steps, the hidden state of all rows in every step (ONNX Runtime quantises as many rows at once
as one of its threads has).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from ..graph import Graph
from .lstm import ACTIVATIONS, lstm_cell
from .quantized import MICROSOFT
from .recurrent import recurrent, unroll
from .recurrent_layer import Recurrent
from .registry import rewrites

_PARAMETERS = {1: (8, 9), 2: (10, 11)}  # of W and R: positions of scale and zero point


@dataclass(frozen=True)
class _Quantized(Recurrent):
    """Products with 8-bit weights; `parameters` holds scale and zero point by weight."""

    parameters: dict[str, tuple[str, str]] = field(default_factory=dict)

    def weight(self, position: int, direction: int) -> str:
        name = self.slice_of(position, direction)
        scale, zero_point = (self.slice_of(p, direction) for p in _PARAMETERS[position])
        self.parameters[name] = scale, zero_point
        return name

    def multiply(self, value: str, weight: str) -> str:
        return self.build.add(
            "DynamicQuantizeMatMul", value, weight, *self.parameters[weight], domain=MICROSOFT
        )


@rewrites("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes the steps out."""
    layer = recurrent(node, graph, gates=4, activations=ACTIVATIONS, kind=_Quantized, hidden_axis=1)
    return unroll(layer, states=[5, 6], cell=lstm_cell)
