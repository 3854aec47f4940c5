"""The order in which a tensor's axes lie in memory, where that is not their own order.

Images of PyTorch may lie channels last, results may be transposed. Kernels of TVM see consecutive
elements. So the program takes and gives such a tensor with its axes in the order of memory, and
permutes them inside, where that often cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Order = tuple[int, ...]


def memory_order(tensor: Any) -> Order | None:
    """Axes from the outermost to the innermost; None if that is 0, 1, 2 and so on.

    Parameters
    ----------
    tensor : torch.Tensor
        Real or fake. None as well if its elements are not consecutive in any order.
    """
    shape = [_number(size) for size in tensor.shape]
    strides = [_number(stride) for stride in tensor.stride()]
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    order = sorted(axes, key=lambda axis: -strides[axis])
    if order == axes or 0 in shape or not _is_dense(order, shape, strides):
        return None
    # Axes of one element may stand anywhere: before the one that follows them.
    for axis in reversed([axis for axis, size in enumerate(shape) if size == 1]):
        order.insert(order.index(axis + 1) if axis + 1 in order else len(order), axis)
    return tuple(order)


def inverse(order: Order) -> Order:
    """The order that undoes one."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _is_dense(order: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for axis in reversed(order):
        if strides[axis] != expected:
            return False
        expected *= shape[axis]
    return True


def _number(size: Any) -> int:
    """A size; of a symbolic one, what it is in the example."""
    return size if isinstance(size, int) else int(size.node.hint)
