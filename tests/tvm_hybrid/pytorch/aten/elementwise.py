"""Functions of one element."""

from __future__ import annotations

import torch

from .calls import Call, Family, call, first, floats, near, wholes

_NAN, _INF = float("nan"), float("inf")
EDGES = torch.tensor(
    [_NAN, _INF, -_INF, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1.0, -1.0, 3.7, -3.7, 6.0, 21.0]
)
"""Points where functions change, and rounding ties."""
TINY = torch.tensor([1e-10, -1e-10, 1e-7, -1e-7, 3e-4, -3e-4, 1e-20, 0.0])
"""Values for which log(1 + x) and exp(x) - 1 lose precision."""
_X = floats(3, 7)
_UNIT = torch.linspace(-1.0, 1.0, 21)
_WHOLE = wholes(11, low=-3, high=8)
_BITS = wholes(7) > 0


def _everywhere(*more: torch.Tensor) -> list[Call]:
    """Floats, edges, and integers, which become float32."""
    return [call(x) for x in (_X, EDGES, _WHOLE, *more)]


# float32 functions may differ from eager mode by a few units in the last place.
_NEAR = (1e-6, 4e-6)
_FUNCTIONS = ("cos", "sin", "tan", "exp", "erf", "sigmoid", "tanh", "sinh", "cosh", "atan")
_OF_UNIT = ("acos", "asin", "atanh")
_LOGS = ("log", "log2", "log10", "log1p")
_NARROW = (*_FUNCTIONS, *_OF_UNIT, "asinh", "acosh", *_LOGS, "expm1", "sqrt", "rsqrt", "reciprocal")

FAMILIES: dict[str, Family] = {
    "functions": {
        **{
            f"{name}.default": [near(*_NEAR, x) for x in (_X, EDGES, _WHOLE)] for name in _FUNCTIONS
        },
        **{
            f"{name}.default": [near(*_NEAR, x) for x in (_UNIT, EDGES, _WHOLE)]
            for name in _OF_UNIT
        },
        "asinh.default": [near(*_NEAR, x) for x in (_X, EDGES, _WHOLE, TINY)],
        "acosh.default": [near(*_NEAR, x) for x in (_X, EDGES, _WHOLE, _X + 2)],
        "expm1.default": [near(0, 4e-6, x) for x in (_X, EDGES, _WHOLE, TINY)],
        "log1p.default": [near(0, 4e-6, x) for x in (_X, EDGES, _WHOLE, TINY)],
        **{f"{name}.default": [near(*_NEAR, x) for x in (_X, EDGES, _WHOLE)] for name in _LOGS[:3]},
        **{
            f"{name}.default": [near(*_NEAR, x) for x in (_X, EDGES, _WHOLE)]
            for name in ("sqrt", "rsqrt", "reciprocal")
        },
    },
    "functions of narrow floats": {
        f"{name}.default": [
            # One rounding of the result.
            near(1e-3, 2e-3, _UNIT.half()),
            near(1e-2, 1e-2, _UNIT.bfloat16()),
        ]
        for name in _NARROW
    },
    "functions of doubles": {
        f"{name}.default": [near(1e-12, 1e-12, _UNIT.double())] for name in _NARROW
    },
    "signs and rounding": {
        "abs.default": [*_everywhere(EDGES.half(), _WHOLE.int())],
        "neg.default": [*_everywhere(EDGES.half(), _WHOLE.int())],
        "sign.default": [*_everywhere(EDGES.half(), _BITS)],
        "ceil.default": _everywhere(EDGES.half()),
        "floor.default": _everywhere(EDGES.half()),
        "trunc.default": _everywhere(EDGES.half()),
        "round.default": _everywhere(EDGES.half(), torch.tensor([8388609.0, 12582913.0])),
        "round.decimals": [
            call(_X * 100, decimals=1),
            call(_X * 100, decimals=-1),
            call(EDGES, decimals=0),
        ],
        "isnan.default": _everywhere(EDGES.half()),
        "isinf.default": _everywhere(EDGES.half()),
        "isfinite.default": _everywhere(EDGES.half()),
        "logical_not.default": _everywhere(_BITS),
        "bitwise_not.default": [call(_WHOLE), call(_BITS), call(_WHOLE.to(torch.uint8))],
        "square.default": _everywhere(),
        "frac.default": [call(_X)],
        "sgn.default": [call(EDGES)],
    },
    "activations": {
        "relu.default": _everywhere(EDGES.half(), EDGES.bfloat16()),
        "relu6.default": [call(_X * 5), call(EDGES)],
        "hardtanh.default": [call(_X), call(_X, -0.5, 0.25), call(EDGES), call(EDGES.half())],
        "hardswish.default": [call(_X * 4), call(EDGES), call(_X.half())],
        "hardsigmoid.default": [call(_X * 4), call(EDGES), call(_X.half())],
        "silu.default": [near(*_NEAR, _X), near(*_NEAR, EDGES), near(1e-3, 2e-3, _X.half())],
        "leaky_relu.default": [
            call(_X),
            call(_X, 0.3),
            call(EDGES),
            call(_X, -0.2),
            call(_X.half()),
        ],
        "elu.default": [
            call(_X),
            call(_X, 0.5),
            call(_X, 1.5, 1.25),
            call(_X, 1.5, 1.25, 0.7),
            call(EDGES),
            near(1e-3, 2e-3, _X.half()),
        ],
        "celu.default": [call(_X), call(_X, 0.5)],
        "selu.default": [call(_X)],
        "gelu.default": [
            near(*_NEAR, _X),
            near(*_NEAR, _X, approximate="tanh"),
            near(*_NEAR, EDGES[3:]),
            near(1e-3, 2e-3, _X.half()),
        ],
        "prelu.default": [call(floats(2, 3, 4), floats(3)), call(_X, floats(1))],
        "softplus.default": [near(*_NEAR, _X), near(*_NEAR, _X * 9, 2.0, 3.0), near(*_NEAR, EDGES)],
        "softshrink.default": [call(_X), call(_X, 0.2)],
        "hardshrink.default": [call(_X), call(_X, 0.2)],
        "mish.default": [near(*_NEAR, _X)],
        "threshold.default": [call(_X, 0.1, 2.0)],
        "glu.default": [call(floats(3, 8), -1), call(floats(4, 3), 0)],
        "native_dropout.default": [first(call(_X, 0.5, False))],
        "logit.default": [near(*_NEAR, torch.sigmoid(_X)), near(*_NEAR, _UNIT, 0.1)],
    },
}
