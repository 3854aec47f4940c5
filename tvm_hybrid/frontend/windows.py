"""How many windows of a kernel an axis has."""

from __future__ import annotations


def window_count(
    extent: int, pads: tuple[int, int], kernel: int, stride: int, dilation: int, ceil: bool = False
) -> int:
    """The size of what a convolution or a pool makes of an axis.

    Parameters
    ----------
    pads
        Before and after the axis.
    ceil
        Whether a last window may reach beyond the padding, but not begin in that behind the axis.
    """
    room = extent + sum(pads) - dilation * (kernel - 1) - 1
    if not ceil:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - ((count - 1) * stride >= extent + pads[0])
