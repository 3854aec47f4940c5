"""Elements selected by indices and masks, and elements written to them."""

from __future__ import annotations

import torch

from .calls import Family, call, floats, refused, wholes

_X = floats(4, 5, 6)
_TABLE = floats(7, 3)
_ROWS = wholes(2, 3, low=0, high=4)
_COLUMNS = wholes(2, 3, low=0, high=5, seed=1)
_BACK = wholes(2, 3, low=-4, high=4, seed=2)
_IN = wholes(2, 5, 6, low=0, high=4)
_MASK = floats(4, 5) > 0
_SORTED = torch.sort(floats(6)).values

FAMILIES: dict[str, Family] = {
    "read by indices": {
        "index.Tensor": [
            call(_X, [_ROWS]),
            call(_X, [_BACK]),
            call(_X, [None, _ROWS]),
            call(_X, [None, _BACK]),
            call(_X, [None, None, _BACK]),
            call(_X, [_ROWS, _COLUMNS]),
            call(_X, [_BACK, _COLUMNS]),
            call(_X, [_ROWS[:, :1], _COLUMNS]),
            call(_X, [_ROWS[:1], _COLUMNS[:, :1]]),
            call(_X, [_ROWS.int()]),
            call(_X, [_ROWS, _COLUMNS, _ROWS]),
            call(_X, [torch.tensor(1)]),
            call(_X, [None, _ROWS[:, :1], _COLUMNS[0]]),
        ],
        "embedding.default": [
            call(_TABLE, _ROWS),
            call(_TABLE, _ROWS.int()),
            call(_TABLE, torch.tensor(2)),
            call(_TABLE, _ROWS, 1),
            call(_TABLE.half(), _ROWS),
        ],
        "gather.default": [
            call(_X, 0, _IN),
            call(_X, -3, _IN),
            call(_X, 2, wholes(4, 5, 2, low=0, high=6)),
            call(_X, 1, wholes(4, 2, 6, low=0, high=5)),
            call(_X, 1, wholes(2, 3, 4, low=0, high=5)),
            call(_X.half(), 0, _IN),
        ],
        "index_select.default": [
            call(_X, 0, _ROWS[0]),
            call(_X, -1, _COLUMNS[0]),
            call(_X, 1, _ROWS[0].int()),
            refused(_X, 1, torch.tensor(2)),
        ],
        "take.default": [call(_X, wholes(2, 3, low=0, high=120))],
        "take_along_dim.default": [call(_X, _IN, 0)],
        "bucketize.Tensor": [
            call(floats(3, 4), _SORTED),
            call(floats(3, 4), _SORTED, right=True),
            call(floats(3, 4), _SORTED, out_int32=True),
            call(_SORTED, _SORTED),
            call(_SORTED, _SORTED, right=True),
            call(wholes(9), wholes(4).sort().values),
        ],
        "one_hot.default": [call(_ROWS, 5)],
    },
    "chosen by masks": {
        "masked_select.default": [
            call(_X, _X > 0),
            call(_X, _MASK[..., None]),
            call(floats(5), floats(5) > 0.3),
        ]
    },
    "written to indices": {
        "scatter.src": [call(_X, 0, _IN[:1], floats(1, 5, 6, seed=3))],
        "scatter.value": [
            call(_X, 0, _IN, 2.5),
            call(_X, -1, wholes(4, 5, 3, low=0, high=6), -1),
            call(wholes(4, 5, 6), 1, wholes(2, 3, 4, low=0, high=5), 9),
        ],
        "index_put.default": [
            call(_X, [torch.tensor([1, 3]), torch.tensor([0, 4]), torch.tensor([5, 2])], floats(2)),
            call(
                _X,
                [torch.tensor([1, 1]), torch.tensor([0, 0]), torch.tensor([5, 5])],
                floats(2),
                True,
            ),
        ],
    },
}
