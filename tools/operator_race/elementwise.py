"""Operators of elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from .case import Case, Cases, Known, Make, booleans, floats, integers, rows

_PLAIN = (
    "Abs Asinh Atan Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
    "Identity IsInf IsNaN LeakyRelu Mish Neg Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus "
    "Softsign Swish Tan Tanh ThresholdedRelu"
)
_WITHIN_ONE = "Acos Asin Atanh"
_POSITIVE = {"Acosh": 1.0, "Log": 0.1, "Reciprocal": 0.1, "Sqrt": 0.1}
_PAIRS = "Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Sub Sum"
_LOGIC = "And Or Xor"
_BITS = "BitwiseAnd BitwiseOr BitwiseXor"


def _of(operator: str, low: float = -3.0, high: float = 3.0) -> Make:
    return lambda size: Case(operator, [floats(*rows(size), low=low, high=high)])


def _pair(operator: str) -> Make:
    return lambda size: Case(operator, [floats(*rows(size)), floats(*rows(size), low=0.5, high=2)])


def _row(operator: str) -> Make:
    return lambda size: Case(
        operator, [floats(*rows(size)), floats(rows(size)[1], low=0.5, high=2)]
    )


def _logic(operator: str) -> Make:
    return lambda size: Case(operator, [booleans(*rows(size)), booleans(rows(size)[1])])


def _bits(operator: str) -> Make:
    return lambda size: Case(operator, [integers(*rows(size)), integers(rows(size)[1])])


def _cast(source: type[np.generic], target: int, **attributes: Any) -> Make:
    def make(size: int) -> Case:
        array = (floats(*rows(size), low=0, high=9) * 10).astype(source)
        return Case("Cast", [array], {"to": target, **attributes})

    return make


ELEMENTWISE: Cases = {
    **{name: _of(name) for name in _PLAIN.split()},
    **{name: _of(name, -0.9, 0.9) for name in _WITHIN_ONE.split()},
    **{name: _of(name, low, 9.0) for name, low in _POSITIVE.items()},
    **{name: _pair(name) for name in _PAIRS.split()},
    **{f"{name}, a row": _row(name) for name in ("Add", "Mul", "Greater", "PRelu")},
    **{name: _logic(name) for name in _LOGIC.split()},
    **{name: _bits(name) for name in _BITS.split()},
    "BitShift": lambda size: Case(
        "BitShift",
        [integers(*rows(size), dtype=np.uint32), integers(*rows(size), high=8, dtype=np.uint32)],
        {"direction": "LEFT"},
    ),
    "BitwiseNot": lambda size: Case("BitwiseNot", [integers(*rows(size), dtype=np.int32)]),
    "Cast, float to int64": _cast(np.float32, TensorProto.INT64),
    "Cast, float to float16": _cast(np.float32, TensorProto.FLOAT16),
    "Cast, float16 to float": _cast(np.float16, TensorProto.FLOAT),
    "Cast, float to uint8": _cast(np.float32, TensorProto.UINT8),
    "Cast, int64 to float": _cast(np.int64, TensorProto.FLOAT),
    "Cast, float to bool": _cast(np.float32, TensorProto.BOOL),
    "CastLike": lambda size: Case("CastLike", [integers(*rows(size)), floats(1)]),
    "Clip": lambda size: Case(
        "Clip", [floats(*rows(size)), Known(np.float32(-0.5)), Known(np.float32(0.5))]
    ),
    "Div, int64": lambda size: Case("Div", [integers(*rows(size)), integers(*rows(size), low=1)]),
    "Equal, int64": lambda size: Case("Equal", [integers(*rows(size)), integers(rows(size)[1])]),
    "Mod": lambda size: Case("Mod", [integers(*rows(size)), integers(rows(size)[1], low=1)]),
    "Mod, float": lambda size: Case(
        "Mod", [floats(*rows(size)), floats(rows(size)[1], low=0.2, high=0.5)], {"fmod": 1}
    ),
    "Not": lambda size: Case("Not", [booleans(*rows(size))]),
    "Pow": lambda size: Case("Pow", [floats(*rows(size), low=0.1, high=2), floats(*rows(size))]),
    "Pow, square": lambda size: Case("Pow", [floats(*rows(size)), Known(np.float32(2))]),
    "Where": lambda size: Case(
        "Where", [booleans(*rows(size)), floats(*rows(size)), floats(rows(size)[1])]
    ),
    "Dropout": lambda size: Case("Dropout", [floats(*rows(size))]),
}
