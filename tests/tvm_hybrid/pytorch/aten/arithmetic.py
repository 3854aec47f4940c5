"""Functions of two or more elements."""

from __future__ import annotations

import torch

from .calls import Call, Family, call, floats, near, wholes
from .elementwise import EDGES

_X, _Y = floats(2, 3, 5), floats(3, 1, seed=1)
_I, _J = wholes(2, 3, 5), wholes(3, 1, seed=1)
_NONZERO = wholes(2, 3, 5, low=1, high=7, seed=2) * (2 * wholes(2, 3, 5, low=0, high=2) - 1)
_BYTES = wholes(2, 3, 5, low=0, high=256, dtype=torch.uint8)
_BIT, _BIT2 = _I > 0, _J > 0
# Ten times these values is almost an integer, or is one after rounding.
_TENTHS = torch.tensor([1.0, 0.3, 6.0, -1.0, -0.3, 0.7])
_GRID = (EDGES[:, None], EDGES[None, :])


def _pairs() -> list[Call]:
    """Operands of one type, and of two types."""
    return [
        call(_X, _Y),
        call(_I, _J),
        call(_I.int(), _J),
        call(_X, _J),
        call(_I, _Y),
        call(_X.half(), _Y.half()),
        call(_X.bfloat16(), _Y),
        call(_X.half(), _Y.double()),
    ]


def _scalars(*scalars: float) -> list[Call]:
    """A tensor and a number."""
    return [call(x, scalar) for x in (_X, _I, _X.half()) for scalar in scalars]


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

FAMILIES: dict[str, Family] = {
    "sums and products of two": {
        "add.Tensor": [
            *_pairs(),
            call(_BYTES, _BYTES),
            call(_X, _Y, alpha=2),
            call(_I, _J, alpha=3),
            call(_BIT, _BIT2),
        ],
        "add.Scalar": _scalars(2, 0.5),
        "sub.Tensor": [
            *_pairs(),
            call(_BYTES[:1], _BYTES),
            call(_X, _Y, alpha=0.5),
            call(_I, _J, alpha=-1),
        ],
        "sub.Scalar": _scalars(2, 0.5),
        "rsub.Tensor": [call(_X, _Y), call(_X, _Y, alpha=2)],
        "rsub.Scalar": [call(_X, 2), call(_I, 2.5), call(_X, 1, 3)],
        "mul.Tensor": [*_pairs(), call(_BYTES, _BYTES), call(_BIT, _BIT2), call(*_GRID)],
        "mul.Scalar": _scalars(3, 0.5),
        "addcmul.default": [call(_X, _Y, _X, value=0.5)],
        "addcdiv.default": [near(1e-5, 1e-5, _X, _Y, _X + 9, value=0.5)],
        "lerp.Scalar": [call(_X, _X + 1, 0.25)],
    },
    "quotients": {
        "div.Tensor": [*_pairs(), call(*_GRID), call(_I, _NONZERO)],
        "div.Scalar": _scalars(3, 0.7),
        "div.Tensor_mode": [
            call(x, y, rounding_mode=mode)
            for mode in ("floor", "trunc", None)
            for x, y in ((_X * 5, _Y), (_I, _NONZERO), (_I.int(), _NONZERO.int()), (_X, _NONZERO))
        ],
        "div.Scalar_mode": [
            call(x, y, rounding_mode=mode)
            for mode in ("floor", "trunc")
            for x, y in ((_X * 5, 0.7), (_I, 2), (_I, -2), (_I, 1.5), (_X * 5, -2))
        ],
        "floor_divide.default": [
            call(_X * 5, _Y),
            call(_I, _NONZERO),
            call(_I, 2),
            call(_X, -0.3),
            call(_TENTHS, 0.1),
        ],
        "fmod.Tensor": [call(_X * 5, _Y), call(_I, _NONZERO), call(_X * 5, _NONZERO), call(*_GRID)],
        "fmod.Scalar": [call(_X * 5, 0.7), call(_I, 3), call(_I, -3), call(_I, 1.5)],
        "remainder.Tensor": [
            call(_X * 5, _Y),
            call(_I, _NONZERO),
            call(_X * 5, _NONZERO),
            call(_BYTES, _BYTES | 1),
            call(*_GRID),
        ],
        "remainder.Scalar": [call(_X * 5, 0.7), call(_I, 3), call(_I, -3), call(_I, 1.5)],
    },
    "powers and angles": {
        "pow.Tensor_Tensor": [
            near(1e-6, 1e-5, _X.abs(), _Y),
            near(1e-6, 1e-5, _X, _I),
            near(1e-6, 1e-5, *_GRID),
            call(_I, wholes(3, 1, low=0, high=4)),
        ],
        "pow.Tensor_Scalar": [
            *(near(1e-6, 1e-5, _X.abs(), y) for y in (0.5, -0.5, 2.5, -1)),
            *(near(1e-6, 1e-5, _X, y) for y in (2, 3, -2, 2.0, 0, 1)),
            *(call(_I, y) for y in (0, 1, 2, 3, 0.5, 2.5)),
            *(near(1e-6, 1e-5, EDGES, y) for y in (0.5, -0.5, 2, 3, -1)),
            near(1e-3, 2e-3, _X.half(), 2),
        ],
        "pow.Scalar": [near(1e-6, 1e-5, 2, _X), near(1e-6, 1e-5, 0.5, _I), call(2, _I.abs())],
        "atan2.default": [
            near(1e-6, 1e-5, _X, _Y),
            near(1e-6, 1e-5, *_GRID),
            near(1e-6, 1e-5, _I, _J),
            near(1e-3, 2e-3, _X.half(), _Y.half()),
        ],
        "logaddexp.default": [near(1e-6, 1e-5, _X, _Y), near(1e-6, 1e-5, *_GRID)],
    },
    "smaller and larger": {
        "maximum.default": [*_pairs(), call(*_GRID), call(_BIT, _BIT2)],
        "minimum.default": [*_pairs(), call(*_GRID), call(_BIT, _BIT2)],
        "max.other": [call(_X, _Y), call(_I, _J)],
        "min.other": [call(_X, _Y), call(_I, _J)],
        "clamp.default": [
            call(_X, -0.5, 0.5),
            call(_X, None, 0.5),
            call(_X, -0.5),
            call(_X, max=0.1),
            call(_X, 0.5, -0.5),
            call(_I, -1, 2),
            call(_I, None, 2),
            call(_I, -1, None),
            call(_I, -1.5, 2.5),
            call(_I, min=0.5),
            call(EDGES, -1, 2),
            call(_BYTES, 3, 200),
            call(_X.half(), -0.5, 0.5),
        ],
        "clamp.Tensor": [
            call(_X, _Y, _Y + 1),
            call(_X, None, _Y),
            call(_X, _Y),
            call(_X, max=_Y),
            call(_I, _J, _J + 2),
            call(_I, _Y),
            call(_X, _Y + 1, _Y),
            call(EDGES, floats(1), floats(1) + 1),
        ],
        "clamp_min.default": [call(_X, 0.1), call(_I, 1)],
        "clamp_max.default": [call(_X, 0.1), call(_I, 1)],
    },
    "comparisons": {
        **{
            f"{name}.Tensor": [
                call(_X, _Y),
                call(_I, _J),
                call(_I, _Y),
                call(*_GRID),
                call(_BIT, _BIT2),
            ]
            for name in _COMPARISONS
        },
        **{
            f"{name}.Scalar": [
                call(_X, 0.5),
                call(_I, 1),
                call(_I, 0.5),
                call(_I, 1.0),
                call(_X, 0),
            ]
            for name in _COMPARISONS
        },
    },
    "bits and truths": {
        **{
            f"bitwise_{name}.Tensor": [
                call(_I, _J),
                call(_BIT, _BIT2),
                call(_I, _J.int()),
                call(_BYTES, _BYTES[:1]),
                call(_I, _BIT2),
            ]
            for name in ("and", "or", "xor")
        },
        **{
            f"bitwise_{name}.Scalar": [
                call(_I, 3),
                call(_BIT, True),
                call(_BYTES, 7),
                call(_BIT, 2),
            ]
            for name in ("and", "or", "xor")
        },
        "__and__.Tensor": [call(_I, _J)],
        "__or__.Scalar": [call(_I, 3)],
        **{
            f"logical_{name}.default": [
                call(_BIT, _BIT2),
                call(_I, _J),
                call(_X, _J),
                call(_X.round(), _BIT2),
            ]
            for name in ("and", "or", "xor")
        },
        "where.self": [
            call(_BIT, _X, _Y),
            call(_BIT2, _I, _J),
            call(_BIT, _X, _J),
            call(_BIT2, _X.half(), _Y),
            call(torch.tensor(True), _X, _Y),
        ],
        "where.ScalarOther": [call(_BIT, _X, 2), call(_BIT, _I, 2.5)],
        "where.ScalarSelf": [call(_BIT, -1.0, _X)],
        "masked_fill.Scalar": [
            call(_X, _BIT2, -1e9),
            call(_X, _BIT, float("-inf")),
            call(_I, _BIT, 3),
        ],
        "masked_fill.Tensor": [call(_X, _BIT2, torch.tensor(2.0))],
        "isin.Tensor_Tensor": [
            call(_I, wholes(4, seed=3)),
            call(_I, wholes(4, seed=3), invert=True),
        ],
    },
}
