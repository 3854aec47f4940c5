"""Operators of rows: reductions, normalisations, sorting, sums along an axis."""

from __future__ import annotations

import numpy as np

from .case import Case, Cases, Known, Make, axes, booleans, floats, image, integers, rows

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
