"""Tensors created without inputs, and casts."""

from __future__ import annotations

import torch

from .calls import Family, call, floats, near, wholes
from .elementwise import EDGES

_X = floats(2, 3)
_I = wholes(2, 3)
_BIT = _I > 0
# Without NaN and infinities, which no integer can represent.
_FINITE = EDGES[3:]
_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
_ALL_TYPES = (*_TYPES, torch.int16, torch.int8, torch.bool)

FAMILIES: dict[str, Family] = {
    "made of nothing": {
        "arange.default": [call(5), call(5, dtype=torch.float32), call(4.5)],
        "arange.start": [call(2, 7), call(0.5, 3.0)],
        "arange.start_step": [
            call(0, 10, 3),
            call(5, 0, -2),
            call(0.0, 1.0, 0.3),
            call(0, 5, 1, dtype=torch.float32),
            call(0, 5, 1, dtype=torch.int32),
            call(1, 8, 2, dtype=torch.float16),
        ],
        "full.default": [
            call([2, 3], 1.5),
            call([2], 3),
            call([2], True),
            call([2, 1], 3, dtype=torch.float16),
            call([], 2.0),
            call([0, 3], 1.0),
            call([2], float("-inf")),
            call([2], 1, dtype=torch.bool),
        ],
        "full_like.default": [
            call(_X, 2),
            call(_X, 2.5, dtype=torch.float64),
            call(_I, 3),
            call(_I, 2, dtype=torch.float32),
            call(_X, float("-inf")),
            call(_I, 1, dtype=torch.bool),
            call(_X, True, dtype=torch.int64),
        ],
        "ones.default": [call([2, 3]), call([2], dtype=torch.int64)],
        "zeros.default": [call([2, 3]), call([2], dtype=torch.bool)],
        "ones_like.default": [call(_X), call(_I, dtype=torch.float32)],
        "zeros_like.default": [call(_X), call(_I, dtype=torch.float32)],
        "new_ones.default": [call(_X, [2, 2]), call(_X, [2], dtype=torch.int64)],
        "new_zeros.default": [call(_I, [2, 2]), call(_X, [2], dtype=torch.bool)],
        "new_full.default": [call(_X, [2], 3), call(_I, [2], 2.5, dtype=torch.float32)],
        "scalar_tensor.default": [
            call(1.5),
            call(2, dtype=torch.int64),
            call(True, dtype=torch.bool),
            call(2),
            call(1.5, dtype=torch.float64),
        ],
        "eye.default": [call(3), call(3, dtype=torch.int64)],
        "eye.m": [call(3, 4)],
        "linspace.default": [near(1e-6, 1e-6, 0, 1, 5), near(1e-6, 1e-6, -2.0, 3.0, 7)],
        "hamming_window.default": [near(1e-6, 1e-6, 8), near(1e-6, 1e-6, 1)],
        "hamming_window.periodic": [near(1e-6, 1e-6, 8, False), near(1e-6, 1e-6, 8, True)],
        "hamming_window.periodic_alpha": [near(1e-6, 1e-6, 8, False, 0.6)],
        "hamming_window.periodic_alpha_beta": [near(1e-6, 1e-6, 8, True, 0.6, 0.3)],
        "hann_window.default": [near(1e-6, 1e-6, 8)],
        "fill.Scalar": [call(_X, 2)],
        "fill.Tensor": [call(_X, torch.tensor(2.5))],
    },
    "casts": {
        "_to_copy.default": [
            *(call(_FINITE, dtype=dtype) for dtype in _ALL_TYPES),
            *(call(_I, dtype=dtype) for dtype in _ALL_TYPES),
            *(call(_BIT, dtype=dtype) for dtype in _ALL_TYPES),
            call(EDGES, dtype=torch.bool),
            call(EDGES, dtype=torch.float16),
            call(_FINITE.abs(), dtype=torch.uint8),
            call(_FINITE.half(), dtype=torch.bfloat16),
            call(_FINITE.bfloat16(), dtype=torch.int64),
            call(_X),
        ],
        "to.dtype": [call(_X, torch.int64), call(_I, torch.float32)],
        "type_as.default": [call(_I, _X)],
        "convert_element_type.default": [call(_X, torch.float16), call(_X * 3, torch.int32)],
    },
}
