"""How many windows of a kernel an axis has."""

from __future__ import annotations

from typing import Any

from tvm import tirx


def window_count(
    extent: Any, pads: tuple[int, int], kernel: int, stride: int, dilation: int, ceil: bool = False
) -> Any:
    """The size of what a convolution or a pool makes of an axis.

    Parameters
    ----------
    extent
        A number, or an expression of open sizes, as the result is one then.
    pads
        Before and after the axis.
    ceil
        Whether a last window may reach beyond the padding, but not begin in that behind the axis.
    """
    room = extent + sum(pads) - (dilation * (kernel - 1) + 1)
    if not ceil:
        return room // stride + 1
    count = -(-room // stride) + 1
    behind = (count - 1) * stride >= extent + pads[0]
    if isinstance(extent, int):
        return count - behind
    return count - tirx.Select(behind, tirx.const(1, "int64"), tirx.const(0, "int64"))
