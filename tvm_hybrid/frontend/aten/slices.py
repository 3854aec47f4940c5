"""Slices whose ends are open sizes, of which torch has proved that they lie inside.

    x: [s, 8], slice(x, 0, 1, n)  ->  R.strided_slice(x, [0], [1], [1 + (n - 1)])   of size n - 1

TVM takes the smaller of an end and the size, an expression that no template knows.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from .constants import type_name


def cut(node: Any, importer: Any) -> Any:
    """`aten.slice.Tensor`: tensor, axis, start, end, step."""
    defaults: tuple[Any, ...] = (None, 0, None, None, 1)
    _, axis, start, end, step = tuple(node.args) + defaults[len(node.args) :]
    axis %= node.meta["val"].dim()
    begin = 0 if start is None else importer.env.get(start, start)
    size = importer.sizes.of(node.meta["val"].shape[axis])
    if size == 0:
        # R.strided_slice wants no end before its start.
        made = node.meta["val"]
        sizes = relax.ShapeExpr([importer.sizes.of(each) for each in made.shape])
        return importer.block_builder.emit(relax.op.zeros(sizes, type_name(made.dtype)))
    proved = step == 1 and not isinstance(size, tirx.Min)
    if not (proved and _is_open(start, end)) or _is_negative(begin):
        return importer.create_convert_map()["slice.Tensor"](node)
    x = importer.env[node.args[0]]
    sliced = relax.op.strided_slice(x, [axis], [begin], [begin + size], assume_inbound=True)
    return importer.block_builder.emit(sliced)


def _is_open(*ends: Any) -> bool:
    """Whether one of the ends is a value of the graph."""
    return any(hasattr(end, "meta") for end in ends)


def _is_negative(begin: Any) -> bool:
    return isinstance(begin, int) and begin < 0
