"""Elements by several indices at once, as far as TVM's converters mean what PyTorch does.

They read x[:, i, j] as x[:, i][:, :, j]: each element of one index with each of the other. PyTorch
broadcasts i and j to one shape. Both mean one thing where i and j have axes of their own, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from microkernels.errors import UnsupportedOperatorError


def take(node: Any, importer: Any) -> Any:
    """`aten.index.Tensor`: tensor, an index or None for each of the first axes."""
    indices = [each for each in node.args[1] if each is not None]
    whole_axes = len(indices) < len(node.args[1])
    if whole_axes and len(indices) > 1 and not _have_axes_of_their_own(node.args[1]):
        raise UnsupportedOperatorError(
            f"operator index.Tensor (node {node.name!r}): several indices beside whole axes that "
            "are broadcast to one another"
        )
    return importer.create_convert_map()["index.Tensor"](node)


def put(node: Any, importer: Any) -> Any:
    """`aten.index_put.default`: tensor, indices, values, whether they are added."""
    if None in node.args[1]:
        raise UnsupportedOperatorError(
            f"operator index_put.default (node {node.name!r}): indices beside whole axes"
        )
    return importer.create_convert_map()["index_put.default"](node)


def _have_axes_of_their_own(indices: Sequence[Any]) -> bool:
    """Whether indices, all of neighbouring axes, have each one axis that the others lack."""
    places = [number for number, each in enumerate(indices) if each is not None]
    if places != list(range(places[0], places[-1] + 1)):
        return False
    shapes = [indices[place].meta["val"].shape for place in places]
    rank = max(map(len, shapes))
    axes = []
    for shape in shapes:
        wide = [rank - len(shape) + axis for axis, size in enumerate(shape) if size != 1]
        if len(wide) != 1:
            return False
        axes.extend(wide)
    return axes == list(range(rank))
