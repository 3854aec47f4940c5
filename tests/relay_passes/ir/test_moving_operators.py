"""Where axes go when an operator moves elements, compared with the elements themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from relay_passes.ir.moving_operators import argument_axis, moves, moves_all, result_axis

op = relax.op
SHAPE = (2, 5, 3)
INDICES = np.array([[1, 0], [1, 1]])
Moved = tuple[Callable[[relax.Expr], relax.Expr], Callable[[np.ndarray], np.ndarray]]

MOVES: dict[str, Moved] = {
    "permute_dims": (lambda x: op.permute_dims(x, [2, 0, 1]), lambda x: x.transpose(2, 0, 1)),
    "reversed": (op.permute_dims, lambda x: x.transpose()),
    "expand_dims": (lambda x: op.expand_dims(x, [0, 2]), lambda x: x[None, :, None]),
    "merged": (lambda x: op.reshape(x, (10, 3)), lambda x: x.reshape(10, 3)),
    "broadcast_to": (
        lambda x: op.broadcast_to(x, (4, *SHAPE)),
        lambda x: np.broadcast_to(x, (4, *SHAPE)),
    ),
    "strided_slice": (lambda x: op.strided_slice(x, [-2], [1], [4]), lambda x: x[:, 1:4]),
    "take": (lambda x: op.take(x, relax.const(INDICES), 0), lambda x: x.take(INDICES, 0)),
    "take in the middle": (
        lambda x: op.take(x, relax.const(INDICES), -2),
        lambda x: x.take(INDICES, 1),
    ),
    "take one": (lambda x: op.take(x, relax.const(1, "int64"), 0), lambda x: x.take(1, 0)),
    "flip": (lambda x: op.flip(x, -1), lambda x: np.flip(x, 2)),
    "repeat": (lambda x: op.repeat(x, 2, 1), lambda x: x.repeat(2, 1)),
    "tile": (lambda x: op.tile(x, [3, 1, 1, 2]), lambda x: np.tile(x, (3, 1, 1, 2))),
}


def axis_of(values: np.ndarray, extent: int) -> int | None:
    """The axis along which values are 0, 1, 2 ... to `extent`, and nothing else decides them."""
    for axis in range(values.ndim):
        wanted = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
        if values.shape[axis] == extent and (values == wanted).all():
            return axis
    return None


@pytest.mark.parametrize("name", MOVES)
def test_where_each_axis_goes(name: str) -> None:
    """Each element says its place along one axis; after the move, one axis of the result says it.

    An axis with another extent or order no longer counts as that axis.
    """
    written, meant = MOVES[name]
    call = relax.BlockBuilder().normalize(written(relax.Var("x", relax.TensorType(SHAPE, "int8"))))
    assert moves(call)
    for axis, extent in enumerate(SHAPE):
        place = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(3)])
        values = meant(np.broadcast_to(place, SHAPE).copy())
        found = axis_of(values, extent)
        assert result_axis(call, axis) == found, axis
        if moves_all(call) and found is not None:
            assert argument_axis(call, found) == axis
