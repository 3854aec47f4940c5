"""Elementwise operators, and operators of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from .case import Case, Cases, Known, Make, axes, booleans, floats, image, integers, rows

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


# Operators of rows: reductions, normalisations, sorting, sums along an axis.


_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
_BY_AXIS = "Hardmax LogSoftmax LpNormalization Softmax"


def _reduction(operator: str, *over: int) -> Make:
    return lambda size: Case(
        operator, [floats(*rows(size), low=0.5, high=1.5), axes(*over)], {"keepdims": 0}
    )


def _by_axis(operator: str, axis: int) -> Make:
    return lambda size: Case(operator, [floats(*rows(size))], {"axis": axis})


def _top(size: int, axis: int, count: int) -> Case:
    return Case("TopK", [floats(*rows(size)), axes(count)], {"axis": axis}, outputs=2)


def _over_image(operator: str) -> Make:
    return lambda size: Case(
        operator, [floats(*image(size)), floats(image(size)[1]), floats(image(size)[1])]
    )


REDUCTIONS: Cases = {
    **{name: _reduction(name, 1) for name in _REDUCTIONS.split()},
    **{f"{name}, axis 0": _reduction(name, 0) for name in _REDUCTIONS.split()},
    "ReduceMean, all": _reduction("ReduceMean", 0, 1),
    "ReduceMean, of images": lambda size: Case("ReduceMean", [floats(*image(size)), axes(2, 3)]),
    "ReduceMax, int64": lambda size: Case("ReduceMax", [integers(*rows(size)), axes(1)]),
    **{name: _by_axis(name, -1) for name in _BY_AXIS.split()},
    "Softmax, axis 0": _by_axis("Softmax", 0),
    "ArgMax": _by_axis("ArgMax", 1),
    "ArgMax, axis 0": _by_axis("ArgMax", 0),
    "ArgMin": _by_axis("ArgMin", 1),
    "CumSum": lambda size: Case("CumSum", [floats(*rows(size)), Known(np.int64(1))]),
    "CumSum, axis 0": lambda size: Case("CumSum", [floats(*rows(size)), Known(np.int64(0))]),
    "CumSum, int64": lambda size: Case("CumSum", [integers(*rows(size)), Known(np.int64(1))]),
    "TopK, 1": lambda size: _top(size, -1, 1),
    "TopK, 10": lambda size: _top(size, -1, 10),
    "TopK, half": lambda size: _top(size, -1, rows(size)[1] // 2),
    "TopK, axis 0": lambda size: _top(size, 0, 5),
    "TopK, of boxes": lambda size: Case(
        "TopK", [floats(1, (200, 4000, 20000)[size]), axes(100)], outputs=2
    ),
    "Unique": lambda size: Case("Unique", [integers((100, 2000, 40000)[size])], outputs=4),
    "Unique, rows": lambda size: Case(
        "Unique", [integers((20, 200, 1000)[size], 8, high=3)], {"axis": 0}, outputs=4
    ),
    "NonZero": lambda size: Case("NonZero", [booleans(*rows(size))]),
    "LayerNormalization": lambda size: Case(
        "LayerNormalization", [floats(*rows(size)), floats(rows(size)[1]), floats(rows(size)[1])]
    ),
    "RMSNormalization": lambda size: Case(
        "RMSNormalization", [floats(*rows(size)), floats(rows(size)[1])]
    ),
    "InstanceNormalization": _over_image("InstanceNormalization"),
    "GroupNormalization": lambda size: Case(
        "GroupNormalization",
        [floats(*image(size)), floats(image(size)[1]), floats(image(size)[1])],
        {"num_groups": 4},
    ),
    "BatchNormalization": lambda size: Case(
        "BatchNormalization",
        [floats(*image(size)), *(Known(floats(image(size)[1], low=0.5, high=1)) for _ in range(4))],
    ),
    "MeanVarianceNormalization": lambda size: Case(
        "MeanVarianceNormalization", [floats(*image(size))]
    ),
    "LRN": lambda size: Case("LRN", [floats(*image(size))], {"size": 5}),
    "SoftmaxCrossEntropyLoss": lambda size: Case(
        "SoftmaxCrossEntropyLoss", [floats(*rows(size)), integers(rows(size)[0], high=60)]
    ),
    "NegativeLogLikelihoodLoss": lambda size: Case(
        "NegativeLogLikelihoodLoss", [floats(*rows(size)), integers(rows(size)[0], high=60)]
    ),
    "Det": lambda size: Case("Det", [floats((2, 20, 200)[size], 4, 4)]),
}
