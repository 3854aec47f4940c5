"""Sums, extremes and what else makes one element of many."""

from __future__ import annotations

import torch

from .calls import Family, call, floats, wholes

_X = floats(2, 3, 5)
_I = wholes(2, 3, 5, dtype=torch.int32)

FAMILIES: dict[str, Family] = {
    "sums": {
        "sum.default": [call(_X), call(_I), call(_I > 0)],
        "sum.dim_IntList": [
            call(_X, [1]),
            call(_X, [0, -1], True),
            call(_X, []),
            call(_X, None),
            call(_X, [1], dtype=torch.float64),
            call(_I, [-1]),
            call(_I > 0, [1]),
        ],
    },
}
