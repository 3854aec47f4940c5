"""Pools, resizes, and samples between pixels."""

from __future__ import annotations

import torch

import tvm_hybrid.pytorch.backend  # noqa: F401  registers an operator

from .calls import Call, Family, call, first, floats, near, refused

_X1, _X2, _X3 = floats(2, 3, 11), floats(1, 2, 9, 10), floats(1, 2, 6, 7, 8)
_HALF = _X2.half()
_IMAGES = floats(2, 3, 6, 7)
_GRID = torch.rand((2, 4, 5, 2), generator=torch.Generator().manual_seed(0)) * 3 - 1.5
_SMALL = (1e-5, 1e-5)


def _averages(rank: int, x: torch.Tensor) -> list[Call]:
    def each(size: int) -> list[int]:
        return [size] * rank

    plain = [
        near(*_SMALL, x, each(3)),
        near(*_SMALL, x, each(3), each(2)),
        near(*_SMALL, x, each(3), each(2), each(1)),
        near(*_SMALL, x, each(3), each(2), each(1), False, False),
        near(*_SMALL, x, each(3), each(2), each(1), True, True),
        near(*_SMALL, x, each(3), each(2), each(1), True, False),
        near(*_SMALL, x, each(2), each(2), each(0), True),
        near(*_SMALL, x, each(2), each(3), each(1), True, True),
        near(*_SMALL, x[0], each(2), each(1)),
    ]
    if rank == 1:
        return plain
    return [
        *plain,
        near(*_SMALL, x, each(3), each(2), each(0), False, True, 5),
        near(*_SMALL, x, each(3), each(2), each(1), True, False, 4),
        near(*_SMALL, x, [2], [1]),
        near(*_SMALL, x, [2, *each(3)[1:]], each(1)),
    ]


def _maxima(rank: int, x: torch.Tensor) -> list[Call]:
    def each(size: int) -> list[int]:
        return [size] * rank

    return [
        call(x, each(3)),
        call(x, each(3), each(2)),
        call(x, each(3), each(2), each(1)),
        call(x, each(3), each(2), each(1), each(2)),
        call(x, each(2), each(2), each(0), each(1), True),
        call(x, each(2), each(3), each(1), each(1), True),
        call(x - 100, each(3), each(2), each(1)),
        call(x[0], each(2), each(1)),
        call(x, [2], [1]),
    ]


FAMILIES: dict[str, Family] = {
    "averages of windows": {
        "avg_pool1d.default": _averages(1, _X1),
        "avg_pool2d.default": [*_averages(2, _X2), near(1e-3, 2e-3, _HALF, [3, 3])],
        "avg_pool3d.default": _averages(3, _X3),
        "adaptive_avg_pool1d.default": [near(*_SMALL, _X1, [4]), near(*_SMALL, _X1, [1])],
        "_adaptive_avg_pool2d.default": [
            near(*_SMALL, _X2, [3, 5]),
            near(*_SMALL, _X2, [4, 7]),
            near(*_SMALL, _X2, [1, 1]),
            near(*_SMALL, _X2, [12, 13]),
            near(*_SMALL, _X2[0], [4, 3]),
            near(1e-3, 2e-3, _HALF, [4, 3]),
        ],
        "adaptive_avg_pool2d.default": [near(*_SMALL, _X2, [1, 1]), near(*_SMALL, _X2, [4, 7])],
        "_adaptive_avg_pool3d.default": [
            near(*_SMALL, _X3, [3, 4, 2]),
            near(*_SMALL, _X3, [4, 5, 3]),
            near(*_SMALL, _X3, [1, 1, 1]),
            near(*_SMALL, _X3[0], [4, 3, 2]),
        ],
    },
    "maxima of windows": {
        "max_pool1d.default": _maxima(1, _X1),
        "max_pool2d.default": [*_maxima(2, _X2), call(_HALF, [3, 3])],
        "max_pool3d.default": _maxima(3, _X3),
    },
    "places of maxima": {
        "max_pool2d_with_indices.default": [first(call(_X2, [3, 3])), refused(_X2, [3, 3])],
        "max_pool3d_with_indices.default": [first(call(_X3, [3, 3, 3])), refused(_X3, [3, 3, 3])],
    },
    "other sizes": {
        "upsample_nearest2d.vec": [
            call(_IMAGES, [12, 14], None),
            call(_IMAGES, [9, 4], None),
            call(_IMAGES, None, [2.0, 3.0]),
        ],
        "upsample_bilinear2d.vec": [
            near(*_SMALL, _IMAGES, [12, 14], False, None),
            near(*_SMALL, _IMAGES, [9, 4], True, None),
            near(*_SMALL, _IMAGES, None, False, [2.0, 2.0]),
            near(*_SMALL, _IMAGES, None, True, [1.7, 1.7]),
            near(*_SMALL, _IMAGES, [3, 4], False, None),
        ],
        "upsample_bicubic2d.vec": [near(*_SMALL, _IMAGES, None, False, [1.7, 1.7])],
        "resize2d.default": [
            call(_IMAGES, 9, 4, "nearest", False),
            near(*_SMALL, _IMAGES, 9, 4, "bilinear", False),
            near(*_SMALL, _IMAGES, 9, 4, "bilinear", True),
            near(*_SMALL, _IMAGES, 9, 14, "bicubic", False),
            near(*_SMALL, _IMAGES, 9, 14, "bicubic", True),
        ],
        "upsample_linear1d.vec": [
            near(*_SMALL, _X1, [22], False, None),
            near(*_SMALL, _X1, [7], True, None),
        ],
        "upsample_nearest1d.vec": [call(_X1, [22], None), call(_X1, [7], None)],
        "_upsample_bilinear2d_aa.vec": [
            near(*_SMALL, _IMAGES, [3, 4], False, None),
            near(*_SMALL, _IMAGES, [12, 14], False, None),
            near(*_SMALL, _IMAGES, [4, 9], True, None),
            near(*_SMALL, _IMAGES, None, False, [0.4, 0.7]),
        ],
        "_upsample_bicubic2d_aa.vec": [
            near(*_SMALL, _IMAGES, [3, 4], False, None),
            near(*_SMALL, _IMAGES, [12, 14], False, None),
            near(*_SMALL, _IMAGES, [4, 9], True, None),
        ],
    },
    "pixels between pixels": {
        "grid_sampler_2d.default": [
            *(
                near(*_SMALL, _IMAGES, _GRID, mode, padding, corners)
                for mode in (0, 1)
                for padding in (0, 1, 2)
                for corners in (False, True)
            ),
            near(*_SMALL, _IMAGES, _GRID, 2, 0, False),
            near(*_SMALL, _IMAGES, _GRID, 2, 1, True),
            near(1e-2, 1e-2, _IMAGES.half(), _GRID.half(), 0, 0, False),
        ],
        "affine_grid_generator.default": [
            near(*_SMALL, floats(2, 2, 3), [2, 3, 4, 5], False),
            near(*_SMALL, floats(2, 2, 3), [2, 3, 4, 5], True),
        ],
    },
}
