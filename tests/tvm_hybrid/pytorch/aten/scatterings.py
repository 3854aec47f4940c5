"""Operators that write at indices and masks."""

from __future__ import annotations

import torch

from .calls import Family, call, floats, wholes

_X = floats(3, 4, 5)
_SRC = floats(3, 4, 5, seed=1)
_NAN = torch.where(_SRC > 1, torch.nan, _SRC)
_I = wholes(3, 4, 5, dtype=torch.int32)
_TO_3 = wholes(3, 4, 5, low=0, high=3)  # many indices are equal
_TO_4 = wholes(2, 6, 3, low=0, high=4, seed=2)  # fewer indices than elements except along the axis
_LONG = floats(3, 6, 5, seed=3)
_NONE = torch.zeros(0, dtype=torch.int64)
_ROWS = torch.tensor([2, 0, -1])
_ROWS_INT = torch.tensor([2, 0, 2], dtype=torch.int32)
_MASK = floats(3, 4, seed=4) > 0

FAMILIES: dict[str, Family] = {
    "scatters": {
        "scatter.src": [
            call(_X, 0, torch.tensor([[[2, 0, 1, 2, 0]] * 4]), _SRC),
            call(_X, -2, torch.tensor([[[3], [0]], [[1], [2]]]), _LONG),
            call(_X > 0, 1, torch.tensor([[[3] * 5]] * 3), _SRC > 0),
            call(floats(), 0, torch.tensor(0), floats(seed=1)),
        ],
        "scatter.value": [call(_X, 1, _TO_4, 2.5), call(_I, -1, torch.tensor([[[4]]]), 3)],
        "scatter.reduce": [
            call(_X, 0, _TO_3, _SRC, reduce="add"),
            call(_X, 1, _TO_4, _LONG, reduce="multiply"),
        ],
        "scatter.value_reduce": [call(_X, 1, _TO_4, 1.5, reduce="multiply")],
        "scatter_add.default": [
            call(_X, 0, _TO_3, _SRC),
            call(_X, -1, _TO_3, _SRC),
            call(_X, 1, _TO_4, _LONG),
            call(_I, 0, _TO_3, _I),
            call(_I.to(torch.uint8), 0, _TO_3, _I.to(torch.uint8)),
            call(_X.bfloat16(), 0, _TO_3, _SRC.bfloat16()),
            call(_X.double(), 0, _TO_3, _SRC.double()),
            call(_X, 0, _NONE.view(0, 4, 5), _SRC),
            call(_X.view(60), 0, torch.full((60,), 7), _SRC.view(60)),
        ],
        "scatter_reduce.two": [
            call(x, axis, index, source, how, include_self=own)
            for how in ("sum", "prod", "mean", "amax", "amin")
            for own in (True, False)
            for x, axis, index, source in (
                (_X, 0, _TO_3, _NAN),
                (_X, 1, _TO_4, _LONG),
                (_I, 2, _TO_3, _I.flip(0)),
            )
        ]
        + [
            call(_X > 0, 0, _TO_3, _SRC > 0, "amax"),
            call(_X > 0, 0, _TO_3, _SRC > 0, "amin", include_self=False),
            call(_X.half(), 0, _TO_3, _NAN.half(), "amax"),
        ],
    },
    "index_puts": {
        "index_put.default": [
            call(_X, [_ROWS], _SRC),
            call(_X, [_ROWS], floats(5)),
            call(_X, [_ROWS_INT], _SRC, True),
            call(_X, [None, None, _ROWS], floats(3, 4, 3)),
            call(_X, [None, torch.tensor([[1, -2], [0, 0]])], floats(3, 2, 2, 5)),
            call(_X, [_ROWS, torch.tensor([[3], [0]])], floats(2, 3, 5)),
            call(_X, [_ROWS, None, torch.tensor([1, 0, 4])], floats(3, 4)),
            call(_X, [None, _ROWS, torch.tensor(-1)], floats(3, 3), True),
            call(_X, [torch.tensor([[0], [2]]), _ROWS, _ROWS], floats(2, 3)),
            call(_X, [torch.tensor(1)], floats(5)),
            call(_X, [None, torch.tensor(-1)], floats(5)),
            call(_X, [None, torch.tensor([[-4]])], floats(3, 1, 1, 5)),
            call(_X, [None, torch.tensor([2])], floats(1, 5)),
            call(_X, [None, torch.tensor([2])], floats(3, 1, 5), True),
            call(_X, [_NONE], floats(0, 4, 5)),
            call(_I, [_ROWS_INT, _ROWS_INT], wholes(3, 5, dtype=torch.int32), True),
            call(_X > 0, [_ROWS_INT], _SRC > 0, True),
            call(_X, [_MASK], torch.tensor(2.0)),
            call(_X, [_MASK], floats(5)),
            call(_X, [_MASK], floats(1, 5), True),
            call(_X, [_MASK], floats(int(_MASK.sum()), 5)),
            call(_X, [None, _MASK.new_tensor([True, False, True, True])], floats(3, 3, 1)),
            call(_X, [None, _MASK.new_tensor([False] * 4)], floats(3, 0, 5)),
            call(_X, [_X > 0.5], floats(int((_X > 0.5).sum()))),
        ],
        "index_add.default": [
            call(_X, 0, _ROWS_INT, _SRC),
            call(_X, -1, torch.tensor([1, 1]), floats(3, 4, 2), alpha=2),
            call(_I, 0, _ROWS_INT, _I),
        ],
        "index_copy.default": [
            call(_X, 1, torch.tensor([3, 0]), floats(3, 2, 5)),
            call(_X, -2, torch.tensor([2]), floats(3, 1, 5)),
            call(_X, 1, torch.tensor(2), floats(3, 1, 5)),
            call(_X, -1, torch.tensor([3]), floats(3, 4, 1)),
            call(_X > 0, 1, torch.tensor([1]), floats(3, 1, 5) > 0),
            call(_I.to(torch.uint8), 1, torch.tensor([0]), _I.to(torch.uint8)[:, :1]),
            call(_X.double(), 1, torch.tensor([3]), floats(3, 1, 5).double()),
            call(_X.half(), 1, torch.tensor([3]), floats(3, 1, 5).half()),
        ],
        "index_fill.int_Scalar": [call(_X, -1, torch.tensor([3, 0]), 1.5)],
        "index_reduce.default": [
            call(_X, 0, _ROWS_INT, _SRC, how, include_self=own)
            for how in ("prod", "mean", "amax", "amin")
            for own in (True, False)
        ],
        "put.default": [
            call(_X, torch.tensor([[5, -1], [3, 7]]), floats(2, 2)),
            call(_X, torch.tensor([5, 5, 3]), floats(3), True),
        ],
        "masked_scatter.default": [
            call(_X, _X > 0, _SRC),
            call(_X, _MASK.unsqueeze(-1), _SRC),
            call(_I, _X > 0, _I),
        ],
        "diagonal_scatter.default": [call(_X, floats(5, 3)), call(_X, floats(3, 4), 1, -2, -1)],
    },
}
