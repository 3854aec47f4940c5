"""Extremes, running sums, searches and sorts along axes."""

from __future__ import annotations

import math

import torch

from .calls import Family, call, floats, wholes

_X = floats(2, 6, 5)
_NAN = torch.where(_X > 1, torch.nan, _X)
_EDGES = torch.tensor([-math.inf, -math.inf, 1.0, math.inf, math.inf, -math.inf, math.nan, 1.0])
_I = wholes(2, 6, 5, dtype=torch.int32)
_B = _X > 0.3
_SORTED = floats(2, 6, 7, seed=1).sort()[0].contiguous()
_LINE = torch.tensor([-1.0, 0.0, 0.0, 0.5, math.nan])
_VALUES = torch.tensor([[0.0, -2.0, 0.5], [math.nan, 3.0, 0.2]])
_ORDER = torch.tensor([3, 0, 2, 1, 4])

FAMILIES: dict[str, Family] = {
    "along_axes": {
        **{
            f"{name}.default": [
                call(_X, [0, -1], True),
                call(_NAN, [1]),
                call(_X),
                call(_I, [2]),
                call(_B, [1]),
                call(_X.bfloat16(), [-1]),
                call(floats()),
            ]
            for name in ("amax", "amin")
        },
        "prod.dim_int": [
            call(_X, 1),
            call(_I, -1, True),
            call(_B, 0),
            call(_X, 1, dtype=torch.float64),
            call(floats(), 0),
        ],
        "min.dim": [call(_X, 1), call(_I.view(60).unique().flip(0), 0, True)],
        "any.default": [call(_B), call(_I), call(_I == 9), call(_X)],
        "aminmax.default": [call(_X, dim=1), call(_X)],
        **{
            f"{name}.default": [
                call(_X, 1),
                call(_NAN, -1),
                call(_I, 0),
                call(_I, 2),
                call(_B, 1),
                call(_EDGES, 0),
                call(_X.half(), 1),
                call(floats(), 0),
            ]
            for name in ("cummax", "cummin")
        },
        "logcumsumexp.default": [
            call(_X * 30, 1),
            call(_EDGES, 0),
            call(_EDGES.flip(0).double(), 0),
            call(_X.bfloat16(), -1),
            call(floats(), 0),
        ],
        "kthvalue.default": [call(_X, 2), call(_X, 3, 1, True), call(floats(), 1)],
        "sort.stable": [call(_X, stable=True, dim=1), call(_X, stable=False, descending=True)],
    },
    "searches": {
        "searchsorted.Tensor": [
            call(_SORTED, floats(2, 6, 3)),
            call(_SORTED, _SORTED, right=True, out_int32=True),
            call(_LINE, _VALUES),
            call(_LINE, _VALUES, side="right"),
            call(_LINE.flip(0)[_ORDER], _VALUES, sorter=_ORDER.argsort().flip(0)),
            call(torch.tensor([1, 3, 3, 9]), wholes(5)),
            call(floats(0), _VALUES),
        ],
        "searchsorted.Scalar": [call(_LINE, 0), call(_LINE, 0.0, right=True)],
        "bucketize.Tensor": [
            call(_VALUES, _LINE),
            call(_VALUES, _LINE, right=True, out_int32=True),
            call(wholes(2, 3), torch.tensor([-2, 0, 1, 1])),
        ],
        "bucketize.Scalar": [call(0.5, _LINE), call(1, torch.tensor([0, 1, 1]), right=True)],
    },
}
