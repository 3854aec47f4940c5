"""ONNX Runtime's LSTM with 8-bit weights.

    DynamicQuantizeLSTM(X, W, R, B, ..., W_scale, W_zero_point, R_scale, R_zero_point)
        ->  DynamicQuantizeMatMul(X, W of all directions), Recurrent(..., R, R_scale)

W is [directions, input, 4 * hidden] here, so nothing is transposed. The input is quantised once for
all steps, the hidden state in every step, each sequence by itself (ONNX Runtime quantises as many
rows at once as one of its threads has). Layers with computed weights, with zero points that leave
int8, or with rare functions are the steps of LSTM, with DynamicQuantizeMatMul in place of MatMul,
which quantises all rows at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

from microkernels.errors import ModelError

from ..graph import Graph, describe
from ..node_builder import optional_input
from .lstm import ACTIVATIONS, lstm_cell
from .quantized import MICROSOFT
from .recurrent import recurrent, unroll
from .recurrent_layer import Recurrent
from .recurrent_operator import as_one_operator
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

    def known_recurrence(self) -> dict[str, str] | None:
        known = self._known(1), self._known(2)
        if known[0] is None or known[1] is None:
            return None
        weight, scale, zero_point = known[1]
        numbers = weight.astype(np.int16) - zero_point
        if numbers.min() < -128 or numbers.max() > 127:
            return None
        rows = np.ascontiguousarray(numbers.astype(np.int8).transpose(0, 2, 1))
        return {
            "weight": self.build.constant(rows),
            "scales": self.build.constant(scale[:, 0], np.float32),
        }

    def input_product(self, rows: str) -> str:
        known = self._known(1)
        assert known is not None
        weight, *parameters = (np.concatenate(list(each), axis=-1) for each in known)
        names = [self.build.constant(each) for each in (weight, *(p[0] for p in parameters))]
        return self.build.add("DynamicQuantizeMatMul", rows, *names, domain=MICROSOFT)

    def _known(self, position: int) -> list[np.ndarray] | None:
        """A constant weight [directions, rows, columns], and [directions, 1, columns] of each of
        its scales and zero points; None if one of them is computed."""
        node, constants = self.node, self.build.graph.constants
        weight, scale = (
            constants.get(optional_input(node, each))
            for each in (position, _PARAMETERS[position][0])
        )
        offset = optional_input(node, _PARAMETERS[position][1])
        if weight is None or scale is None or (offset and offset not in constants):
            return None
        zero_point = constants[offset] if offset else np.zeros(scale.shape, weight.dtype)
        directions, _, width = weight.shape
        for name, found in (("scale", scale), ("zero point", zero_point)):
            if found.shape not in ((directions,), (directions, width)):
                raise ModelError(
                    f"{describe(node)}: a {name} of shape {found.shape} for a weight of shape "
                    f"{weight.shape}; there is one for each direction, or for each of its columns"
                )
        return [
            weight,
            *(
                np.broadcast_to(each.reshape(directions, 1, -1), (directions, 1, width))
                for each in (scale, zero_point)
            ),
        ]


@rewrites("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """Writes one operator, or the steps."""
    layer = recurrent(node, graph, gates=4, activations=ACTIVATIONS, kind=_Quantized, hidden_axis=1)
    whole = as_one_operator(layer, "lstm")
    if whole is not None:
        return whole
    return unroll(layer, states=[5, 6], cell=lstm_cell)
