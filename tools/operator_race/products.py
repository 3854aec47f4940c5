"""Products of matrices, quantised operators, attention and recurrent layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case, Cases, Input, Known, Make, floats, image, integers, rows

CONTRIB = "com.microsoft"


def _width(size: int) -> int:
    return (32, 256, 1024)[size]


def _weight(size: int, dtype: Any = np.float32) -> Known:
    shape = rows(size)[1], _width(size)
    if dtype == np.float32:
        return Known(floats(*shape))
    return Known(integers(*shape, low=-100, dtype=dtype))


def _bytes(*shape: int) -> np.ndarray:
    return integers(*shape, high=255, dtype=np.uint8)


_SCALE, _ZERO = Known(np.float32(0.02)), Known(np.uint8(128))
_SIGNED_ZERO = Known(np.int8(0))


def _qlinear_conv(size: int) -> Case:
    channels = image(size)[1]
    weight = Known(integers(channels, channels, 3, 3, low=-100, dtype=np.int8))
    inputs: list[Input] = [
        _bytes(*image(size)),
        _SCALE,
        _ZERO,
        weight,
        _SCALE,
        _SIGNED_ZERO,
        _SCALE,
        _ZERO,
    ]
    return Case("QLinearConv", inputs, {"pads": [1, 1, 1, 1]})


def _conv_integer(size: int) -> Case:
    channels = image(size)[1]
    weight = Known(integers(channels, channels, 3, 3, low=-100, dtype=np.int8))
    inputs: list[Input] = [_bytes(*image(size)), weight, _ZERO, _SIGNED_ZERO]
    return Case("ConvInteger", inputs, {"pads": [1, 1, 1, 1]})


def _qlinear_matmul(size: int) -> Case:
    inputs: list[Input] = [
        _bytes(*rows(size)),
        _SCALE,
        _ZERO,
        _weight(size, np.int8),
        _SCALE,
        _SIGNED_ZERO,
    ]
    return Case("QLinearMatMul", [*inputs, _SCALE, _ZERO])


def _heads(size: int) -> tuple[int, int, int, int]:
    return ((1, 2, 16, 32), (1, 8, 128, 64), (1, 12, 512, 64))[size]


def _recurrent(operator: str, gates: int, batch: int, **attributes: Any) -> Make:
    """A recurrent layer in both directions, with 10 to 100 steps."""

    def make(size: int) -> Case:
        steps, inner, hidden = ((10, 16, 16), (30, 64, 64), (100, 128, 256))[size]
        spread = hidden**-0.5
        weights = [
            Known(floats(2, gates * hidden, each, low=-spread, high=spread))
            for each in (inner, hidden)
        ]
        bias = Known(floats(2, 2 * gates * hidden))
        every = {"hidden_size": hidden, "direction": "bidirectional", **attributes}
        return Case(operator, [floats(steps, batch, inner), *weights, bias], every)

    return make


def _dynamic_lstm(batch: int) -> Make:
    def make(size: int) -> Case:
        steps, inner, hidden = ((10, 16, 16), (30, 64, 64), (100, 128, 256))[size]
        weights = [
            Known(integers(2, each, 4 * hidden, low=-127, high=128, dtype=np.int8))
            for each in (inner, hidden)
        ]
        scale = Known(np.full(2, hidden**-0.5 / 127, np.float32))
        zero = Known(np.zeros(2, np.int8))
        inputs = [floats(steps, batch, inner), *weights, Known(floats(2, 8 * hidden)), *[None] * 4]
        every = {"hidden_size": hidden, "direction": "bidirectional"}
        return Case(
            "DynamicQuantizeLSTM", [*inputs, scale, zero, scale, zero], every, domain=CONTRIB
        )

    return make


PRODUCTS: Cases = {
    "MatMul": lambda size: Case("MatMul", [floats(*rows(size)), _weight(size)]),
    "MatMul, one row": lambda size: Case("MatMul", [floats(1, rows(size)[1]), _weight(size)]),
    "MatMul, both fed": lambda size: Case(
        "MatMul", [floats(*rows(size)), floats(rows(size)[1], _width(size))]
    ),
    "MatMul, of heads": lambda size: Case(
        "MatMul", [floats(*_heads(size)), floats(*_heads(size)[:2], _heads(size)[3], 48)]
    ),
    "Gemm": lambda size: Case(
        "Gemm", [floats(*rows(size)), _weight(size), Known(floats(_width(size)))]
    ),
    "Gemm, transposed": lambda size: Case(
        "Gemm",
        [floats(*rows(size)), Known(floats(_width(size), rows(size)[1]))],
        {"transB": 1, "alpha": 0.5},
    ),
    "Einsum": lambda size: Case(
        "Einsum",
        [floats(*_heads(size)), floats(*_heads(size))],
        {"equation": "bhid,bhjd->bhij"},
    ),
    "MatMulInteger": lambda size: Case(
        "MatMulInteger", [_bytes(*rows(size)), _weight(size, np.int8), _ZERO, _SIGNED_ZERO]
    ),
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
    "ConvInteger": _conv_integer,
    "QuantizeLinear": lambda size: Case("QuantizeLinear", [floats(*rows(size)), _SCALE, _ZERO]),
    "DequantizeLinear": lambda size: Case("DequantizeLinear", [_bytes(*rows(size)), _SCALE, _ZERO]),
    "DynamicQuantizeLinear": lambda size: Case(
        "DynamicQuantizeLinear", [floats(*rows(size))], outputs=3
    ),
    "Attention": lambda size: Case("Attention", [floats(*_heads(size)) for _ in range(3)]),
    "Attention, causal": lambda size: Case(
        "Attention", [floats(*_heads(size)) for _ in range(3)], {"is_causal": 1}
    ),
    "RotaryEmbedding": lambda size: Case(
        "RotaryEmbedding",
        [floats(*_heads(size)), *[Known(floats(600, _heads(size)[3] // 2)) for _ in range(2)],
         np.arange(_heads(size)[2])[None]],
    ),
    "LSTM": _recurrent("LSTM", 4, 1),
    "LSTM, batch 16": _recurrent("LSTM", 4, 16),
    "GRU": _recurrent("GRU", 3, 1, linear_before_reset=1),
    "GRU, batch 16": _recurrent("GRU", 3, 16, linear_before_reset=1),
    "GRU, reset before": _recurrent("GRU", 3, 1),
    "RNN": _recurrent("RNN", 1, 1),
    "RNN, batch 16": _recurrent("RNN", 1, 16),
    "DynamicQuantizeLSTM": _dynamic_lstm(1),
    "DynamicQuantizeLSTM, batch 16": _dynamic_lstm(16),
}  # fmt: skip
