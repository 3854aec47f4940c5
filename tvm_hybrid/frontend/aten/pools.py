"""Averages of windows with a divisor of their own, which TVM's converter does not read.

avg_pool2d(x, [3, 3], [2, 2], divisor_override=5)
    ->  R.multiply(R.nn.avg_pool2d(x, (3, 3), (2, 2)), R.const(9 / 5, "float32"))
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from microkernels.base.errors import UnsupportedOperatorError

_POOLS = {2: (relax.op.nn.avg_pool2d, "NCHW"), 3: (relax.op.nn.avg_pool3d, "NCDHW")}


def average(node: Any, importer: Any) -> Any:
    """`aten.avg_pool2d.default` and `aten.avg_pool3d.default`."""
    name = node.target.__name__
    divisor = node.args[6] if len(node.args) > 6 else node.kwargs.get("divisor_override")
    if divisor is None:
        return importer.create_convert_map()[name](node)
    x, kernel, stride, padding, ceil_mode = (*node.args[:5], *[None] * 5)[:5]
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    rank = int(name.removeprefix("avg_pool")[0])
    kernel, padding = _each(kernel, rank), _each(padding or 0, rank)
    stride = _each(stride or kernel, rank)
    if ceil_mode and not all(isinstance(size, int) for size in (*before, *after)):
        raise UnsupportedOperatorError(
            f"operator {name} (node {node.name!r}) of a dynamic size with ceil_mode and a divisor; "
            "leave one of them out"
        )
    # Windows that are whole, of which all elements count: their mean is a part of their sum.
    ends = list(padding)
    if ceil_mode:
        for axis, (size, count) in enumerate(zip(before[-rank:], after[-rank:], strict=True)):
            reach = (count - 1) * stride[axis] + kernel[axis]
            ends[axis] = max(reach - size - padding[axis], 0)
    emit = importer.block_builder.emit
    value = importer.env[x]
    around = [0, 0] * (len(before) - rank)
    for start, end in zip(padding, ends, strict=True):
        around += [start, end]
    value = emit(relax.op.nn.pad(value, around, "constant", 0))
    pool, layout = _POOLS[rank]
    if len(before) == rank + 1:
        value = emit(relax.op.expand_dims(value, 0))
    value = emit(pool(value, kernel, stride, layout=layout))
    if len(before) == rank + 1:
        value = emit(relax.op.squeeze(value, [0]))
    factor = relax.const(math.prod(kernel) / divisor, str(value.ty.dtype))
    return emit(relax.op.multiply(value, factor))


def _each(given: Any, rank: int) -> list[int]:
    """Numbers for all axes, of which one may stand for all."""
    numbers = list(given) if isinstance(given, (list, tuple)) else [given]
    return numbers * rank if len(numbers) == 1 else numbers
