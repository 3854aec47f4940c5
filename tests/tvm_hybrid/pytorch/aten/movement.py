"""Data movement: views, permutations, parts, and concatenations."""

from __future__ import annotations

import torch

from .calls import Family, call, floats, refused, wholes

_X = floats(2, 3, 4)
_I = wholes(2, 3, 4)
_BIT = _I > 0
_ONE = floats(2, 1, 4, 1)
_SCALAR = torch.tensor(2.5)
_IMAGE = floats(1, 2, 5, 6)

FAMILIES: dict[str, Family] = {
    "views": {
        "view.default": [
            call(_X, [6, 4]),
            call(_X, [-1]),
            call(_X, [2, -1, 2]),
            call(_SCALAR, [1]),
        ],
        "reshape.default": [call(_X, [4, 6]), call(_BIT, [-1])],
        "flatten.using_ints": [call(_X), call(_X, 1), call(_X, 0, -2), call(_SCALAR)],
        "unflatten.int": [call(_X, 2, [2, 2]), call(_X, -1, [2, -1])],
        "squeeze.default": [call(_ONE), call(_X)],
        "squeeze.dim": [call(_ONE, 1), call(_ONE, -1), call(_ONE, 0), call(_SCALAR, 0)],
        "squeeze.dims": [call(_ONE, [1, -1]), call(_ONE, [0]), call(_ONE, [0, 1]), call(_ONE, [])],
        "unsqueeze.default": [
            call(_X, 0),
            call(_X, -1),
            call(_X, 2),
            call(_X, -4),
            call(_SCALAR, 0),
        ],
        "permute.default": [call(_X, [2, 0, 1]), call(_X, [-1, 0, -2]), call(_SCALAR, [])],
        "transpose.int": [call(_X, 0, 2), call(_X, -1, -2)],
        "t.default": [call(floats(3, 5))],
        "expand.default": [
            call(_ONE, [2, 3, 4, 5]),
            call(_ONE, [-1, 3, -1, -1]),
            call(_ONE, [2, 2, 3, -1, 5]),
            call(_SCALAR, [2, 3]),
            call(_ONE, [2, 3, 4, 5], implicit=True),
        ],
        "expand_as.default": [call(_ONE, floats(2, 3, 4, 5))],
        "broadcast_to.default": [call(_ONE, [2, 3, 4, 5])],
        "alias.default": [call(_X)],
        "clone.default": [call(_X), call(_IMAGE, memory_format=torch.channels_last)],
        "contiguous.default": [call(_X)],
        "detach.default": [call(_X)],
        "lift_fresh_copy.default": [call(_X)],
        "as_strided.default": [
            call(_X, [6, 4], [4, 1]),
            call(_X, [24], [1], 0),
            refused(_X, [2, 3], [12, 4]),
            refused(_X, [4, 3], [1, 4]),
            refused(_X, [3], [2], 1),
            refused(_X, [2, 6], [1, 2], 1),
        ],
        "diagonal.default": [
            call(floats(4, 4)),
            call(floats(4, 4), 1),
            call(floats(3, 5), -1),
            call(_X, 0, 1, 2),
            call(_X, 1, -1, 0),
            call(_X, 0, 0, -1),
        ],
        "copy.default": [
            # torch treats the first operand as changed: each call has its own.
            call(floats(2, 3, 4, seed=1), _X),
            call(floats(2, 3, 4, seed=2), floats(4)),
            call(floats(2, 3, 4, seed=3), _I),
            call(wholes(2, 3, 4, seed=4), _X * 3),
            call(_X.half(), _X),
        ],
    },
    "parts": {
        "slice.Tensor": [
            call(_X, 1, 1, 3),
            call(_X, -1, -3, -1),
            call(_X, 2, 0, 9223372036854775807),
            call(_X, 2, 0, 9223372036854775807, 2),
            call(_X, 2, 1, None, 2),
            call(_X, 0, -100, 100),
            call(_X, 1, None, 2),
            call(_X, 2, 3, 1),
            call(_X),
            call(_BIT, 1, 1),
        ],
        "select.int": [
            call(_X, 0, 1),
            call(_X, -1, -1),
            call(_X, 1, -3),
            call(_I, 1, 2),
            call(_BIT, 0, 0),
        ],
        "narrow.default": [call(_X, 1, 1, 2), call(_X, -1, 2, 1)],
        "split.Tensor": [call(_X, 2, 2), call(_X, 3, -1), call(_X, 2)],
        "split_with_sizes.default": [
            call(_X, [1, 3], 2),
            call(_X, [1, 1], 0),
            call(_X, [1, 2], -2),
            call(_X, [4], 2),
            call(_X, [2]),
            call(_X, [0, 4], 2),
        ],
        "chunk.default": [call(_X, 2, 2), call(_X, 3, -1), call(_X, 2, 1), call(_X, 5, 1)],
        "tensor_split.sections": [call(floats(7, 2), 3)],
        "unbind.int": [call(_X), call(_X, -1), call(floats(1, 4))],
        "tril.default": [call(_X), call(_X, 1), call(_X, -1)],
        "triu.default": [call(_X), call(_X, 1), call(_X, -1)],
        "flip.default": [
            call(_X, [0]),
            call(_X, [-1, 1]),
            call(_X, [0, 1, 2]),
            call(_BIT, [1]),
            call(_X, []),
        ],
        "roll.default": [call(_X, [1], [2]), call(_X, [-1, 2], [0, 1]), call(_X, [3])],
        "rot90.default": [call(_X)],
    },
    "several as one": {
        "cat.default": [
            call([_X, _X + 1], 1),
            call([_X, _X], -1),
            call([_X, _I], 0),
            call([_X.half(), _X], 2),
            call([_X]),
            call([floats(0), _X], 1),
            call([_BIT, _BIT], 1),
            call([_X, floats(2, 0, 4)], 1),
        ],
        "stack.default": [
            call([_X, _X + 1]),
            call([_X, _X], -1),
            call([_I, _I], 2),
            call([_X, _I], 1),
        ],
        "repeat.default": [
            call(_X, [1, 2, 1]),
            call(_X, [2, 1, 1, 3]),
            call(_X, [1, 1, 1]),
            call(_SCALAR, [3]),
            call(_BIT, [1, 1, 2]),
            call(_X, [2, 2, 1, 1, 2]),
        ],
        "tile.default": [call(_X, [2]), call(_X, [2, 1, 1, 3])],
        "repeat_interleave.self_int": [call(_X, 2, 1), call(_X, 2)],
        "meshgrid.indexing": [
            call([floats(3), floats(4)], indexing="ij"),
            call([floats(3), floats(4)], indexing="xy"),
        ],
        "meshgrid.default": [call([floats(3), floats(4)])],
        "slice_scatter.default": [
            call(_X, floats(2, 1, 4), 1, 1, 2),
            call(_X, floats(2, 3, 2), 2, 0, 4, 2),
            call(_X, floats(2, 3, 2), -1, -2),
            call(_X, floats(2, 3, 2), 2, 2, 9223372036854775807),
            call(_I, wholes(1, 3, 4), 0, 1),
            call(_X, floats(2, 3, 4)),
        ],
        "select_scatter.default": [call(_X, floats(2, 4), 1, 2)],
    },
    "padding and shuffling": {
        "constant_pad_nd.default": [
            call(_X, [1, 2]),
            call(_X, [0, 1, 2, 0], 3.5),
            call(_X, [1, 0, 0, 0, 0, 1], -1),
            call(_I, [1, 1], 7),
            call(_X, [-1, 1]),
            call(_X, [-1, -1, 1, 0]),
            call(_BIT, [1, 1], True),
            call(_X, [1, 1], float("-inf")),
            call(_X.half(), [1, 1], 0.5),
        ],
        "pad.default": [
            call(_IMAGE, [1, 2, 2, 1], "reflect"),
            call(_IMAGE, [1, 2, 2, 1], "replicate"),
            call(_IMAGE, [1, 2, 2, 1], "circular"),
            call(_IMAGE, [1, 2], "constant", 2.0),
            call(_X, [2, 1], "reflect"),
            call(_X, [2, 1], "replicate"),
        ],
        "pixel_shuffle.default": [call(floats(1, 8, 2, 3), 2), call(floats(8, 2, 3), 2)],
        "pixel_unshuffle.default": [call(floats(1, 2, 4, 6), 2)],
        "channel_shuffle.default": [call(floats(1, 6, 2, 3), 2)],
    },
}
