"""Sums, extremes and other reductions; running sums and sorting."""

from __future__ import annotations

import torch

from .calls import Call, Family, call, floats, wholes
from .elementwise import EDGES

_X = floats(2, 3, 5)
_I = wholes(2, 3, 5, dtype=torch.int32)
_BIT = _I > 0
_HALF, _BRAIN = _X.half(), _X.bfloat16()
# Without equal elements, whose order is undefined.
_MIXED = torch.randperm(30, generator=torch.Generator().manual_seed(0)).view(2, 3, 5)
_TIES = wholes(4, 9, low=0, high=3)
_WITH_NAN = torch.where(_X > 1.2, torch.nan, _X)
_LARGE = torch.full((4, 300), 300.0).half()


def _extremes() -> list[Call]:
    return [call(_X), call(_I), call(_HALF), call(_BIT), call(_WITH_NAN), call(EDGES)]


def _places() -> list[Call]:
    """Indices of extremes; the first among equal elements."""
    return [
        call(_X),
        call(_X, 1),
        call(_X, -1, True),
        call(_X, None, True),
        call(_I, 0),
        call(_TIES, 1),
        call(_TIES),
        call(_HALF, 2),
        call(_WITH_NAN, 2),
        call(_WITH_NAN),
    ]


FAMILIES: dict[str, Family] = {
    "sums": {
        "sum.default": [call(_X), call(_I), call(_BIT), call(_X, dtype=torch.float64)],
        "sum.dim_IntList": [
            call(_X, [1]),
            call(_X, [0, -1], True),
            call(_X, []),
            call(_X, None),
            call(_X, None, True),
            call(_X, [1], dtype=torch.float64),
            call(_X, [1], dtype=torch.int64),
            call(_I, [-1]),
            call(_I, [-1], dtype=torch.float32),
            call(_BIT, [1]),
            call(_HALF, [1]),
            call(_BRAIN, [1]),
            call(_LARGE, [1]),
            call(_I, [1], dtype=torch.int32),
        ],
        "mean.default": [call(_X), call(_X, dtype=torch.float64), call(_I, dtype=torch.float32)],
        "mean.dim": [
            call(_X, [1]),
            call(_X, [0, -1], True),
            call(_X, None),
            call(_X, []),
            call(_X, [1], dtype=torch.float64),
            call(_I, [1], dtype=torch.float32),
            call(_HALF, [1]),
            call(_BRAIN, [1]),
            call(_LARGE, [1]),
        ],
        "prod.default": [call(_X), call(_I), call(_BIT), call(_X, dtype=torch.float64)],
        "var.correction": [
            call(_X),
            call(_X, [1]),
            call(_X, [1, 2], correction=0),
            call(_X, [-1], correction=2, keepdim=True),
            call(_X, [0], correction=0.5),
            call(_HALF, [1]),
            call(_X, [0], correction=2),
            call(_X, [], correction=1),
        ],
        "var.dim": [call(_X, [1]), call(_X, [1], False), call(_X, [1], True, True)],
        "std.correction": [
            call(_X),
            call(_X, [1]),
            call(_X, [1, 2], correction=0),
            call(_X, [-1], correction=2, keepdim=True),
            call(_X, [0], correction=0.5),
        ],
        "linalg_vector_norm.default": [
            call(_X),
            call(_X, 2, [1]),
            call(_X, 1, [1, 2], True),
            call(_X, float("inf"), [-1]),
            call(_X, float("-inf"), [-1]),
            call(_X, 0, [1]),
            call(_X, 3, [1]),
            call(_X, 0.5, [1]),
            call(_X, 2, [1], dtype=torch.float64),
            call(_X, -1.0, [1]),
            call(_HALF, 2, [1]),
        ],
    },
    "extremes": {
        "max.default": _extremes(),
        "min.default": _extremes(),
        "max.dim": [
            call(_X, 1),
            call(_X, -1, True),
            call(_MIXED, 0),
            call(_TIES, 1),
            call(_HALF, 2),
            call(_I, 0, True),
            call(_BIT, 1),
            call(_WITH_NAN, 2),
        ],
        "argmax.default": _places(),
        "argmin.default": _places(),
        "median.default": [
            call(_X),
            call(_MIXED),
            call(floats(4, 4)),
            call(_HALF),
            call(_WITH_NAN),
        ],
        "median.dim": [
            call(_X, 1),
            call(_X, 0),
            call(_X, -1, True),
            call(_MIXED, 2),
            call(floats(4, 4), 1),
            call(_WITH_NAN, 2),
        ],
        "any.dim": [call(_BIT, 1), call(_I, -1, True), call(_X.round(), 2), call(_BIT, 0, True)],
        "any.dims": [call(_BIT, [1, 2]), call(_I, [0], True), call(_BIT, None), call(_BIT, [])],
        "all.dim": [call(_BIT, 1), call(_I, -1, True), call(_X.round(), 2)],
        "all.default": [call(_BIT), call(_X.round())],
    },
    "running sums and orders": {
        "cumsum.default": [
            call(_X, 1),
            call(_X, -1),
            call(_I, 0),
            call(_BIT, 1),
            call(_X, 1, dtype=torch.float64),
            call(_HALF, 2),
            call(_I, 2, dtype=torch.float32),
        ],
        "cumprod.default": [
            call(_X, 1),
            call(_X, -1),
            call(_I, 0),
            call(_BIT, 1),
            call(_X, 1, dtype=torch.float64),
            call(_HALF, 2),
        ],
        "sort.default": [
            call(_X),
            call(_X, 1),
            call(_X, 0, True),
            call(_MIXED, -1, True),
            call(_HALF, 2),
        ],
        "argsort.default": [call(_X), call(_X, 0, True), call(_MIXED, 1)],
        "topk.default": [
            call(_X, 2),
            call(_X, 2, 1),
            call(_X, 1, 0, False),
            call(_MIXED, 3, -1, False, True),
            call(_X, 5, 2),
            call(_HALF, 2),
        ],
    },
}
