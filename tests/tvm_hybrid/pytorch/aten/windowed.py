"""Windows, interpolated samples, distances, embedding bags."""

from __future__ import annotations

import torch

from .calls import Family, call, first, floats, wholes

_X = floats(2, 3, 8, 9)
_VOLUME = floats(2, 3, 4, 5, 6)
_GRID = floats(2, 2, 3, 4, 3)  # a third of the positions lies outside
_LINES = floats(3, 4, 5)
_WEIGHT = floats(9, 4)
_WORDS = wholes(7, low=0, high=9)
_BAGS = torch.tensor([0, 3, 3, 5])

FAMILIES: dict[str, Family] = {
    "windows": {
        "unfold.default": [
            call(_X, 2, 3, 2),
            call(_X, -1, 4, 1),
            call(_X, 1, 1, 5),
            call(wholes(7), 0, 2, 3),
            call(floats(), 0, 1, 1),
        ],
        "adaptive_max_pool1d.default": [call(floats(2, 3, 10), [4]), call(floats(3, 10), [5])],
        "adaptive_max_pool2d.default": [call(_X, [3, 2]), call(_X, [4, 3]), call(_X, [1, 9])],
        "im2col.default": [
            call(_X, [3, 2], [2, 1], [1, 0], [1, 2]),
            call(_X, [2, 2], [2, 3], [0, 1], [3, 1]),
        ],
        "upsample_linear1d.vec": [call(floats(2, 3, 5), [8], False, None)],
        "group_norm.default": [call(floats(2, 4, 5), 2), call(floats(2, 4), 2, floats(4))],
    },
    "volumes": {
        "adaptive_max_pool3d.default": [call(_VOLUME[:1], [3, 5, 4])],
        "grid_sampler_3d.default": [
            call(_VOLUME, _GRID, 0, 0, False),
            call(_VOLUME, _GRID, 1, 1, True),
            call(_VOLUME, _GRID, 0, 2, False),
        ],
        "upsample_trilinear3d.vec": [call(_VOLUME, None, False, [2.0, 2.0, 1.5])],
    },
    "distances": {
        "cdist.default": [
            *(call(_LINES, floats(3, 2, 5, seed=1), p) for p in (0.0, 1.0, 3.0, float("inf"))),
            # A zero diagonal: torch decomposes it into products if there are more than 25 lines.
            call(_LINES, _LINES),
            call(floats(1, 4, 5), _LINES, 2.0, 2),
        ],
        "pdist.default": [call(floats(5, 4)), call(floats(5, 4), 1.0)],
        "rrelu.default": [call(_X), call(_X, 0.1, 0.5)],
        "var_mean.correction": [call(_X, [1], correction=0), call(_X, [0, 2], keepdim=True)],
        "addmv.default": [call(floats(4), floats(4, 5), floats(5), alpha=2, beta=0.5)],
        "addbmm.default": [call(floats(4, 2), _LINES, floats(3, 5, 2), alpha=2)],
        "bilinear.default": [call(floats(6, 4), floats(6, 5), floats(3, 4, 5), floats(3))],
        "remainder.Scalar_Tensor": [call(3, _X), call(7, wholes(9, low=1, high=6))],
        "bitwise_and.Scalar_Tensor": [call(3, wholes(9))],
        "ldexp.Tensor": [call(_X, wholes(2, 3, 8, 9))],
        "tril_indices.default": [call(3, 4, 1)],
        "triu_indices.default": [call(3, 4, -1)],
    },
    "bags": {
        "embedding_bag.padding_idx": [
            first(call(_WEIGHT, _WORDS, _BAGS, False, mode, False, weights, last, padding))
            for mode, weights, last, padding in (
                (0, None, False, None),
                (0, floats(7), True, 3),
                (1, None, False, None),
                (1, None, True, int(_WORDS[0])),
                (2, None, False, None),
                (2, None, False, int(_WORDS[3])),
            )
        ]
    },
}
