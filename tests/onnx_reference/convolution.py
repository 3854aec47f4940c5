"""Channels-last convolutions of integers: one product for each tap of the window."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .arithmetic import Array


def integer_conv(
    x: Array,
    w: Array,
    strides: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    groups: int = 1,
) -> Array:
    """A convolution over any number of axes, int32.

    Parameters
    ----------
    x : numpy.ndarray
        Integers [N, *extents, C] minus their zero point, so that padding is 0.
    w : numpy.ndarray
        Integers [*kernel, C / groups, OC], minus their zero points.
    strides, padding, dilation : sequence of int, optional
        As in ONNX's Conv: padding is all beginnings, then all ends.
    groups : int
        Number of groups of channels.
    """
    rank = x.ndim - 2
    strides, dilation = strides or [1] * rank, dilation or [1] * rank
    padding = padding or [0] * 2 * rank
    kernel, channels, count = w.shape[:rank], w.shape[-2], w.shape[-1]
    margins = list(zip(padding[:rank], padding[rank:], strict=True))
    wide = np.pad(x.astype(np.int64), [(0, 0), *margins, (0, 0)])
    sizes = [
        (extent - (taps - 1) * step - 1) // stride + 1
        for extent, taps, step, stride in zip(
            wide.shape[1:-1], kernel, dilation, strides, strict=True
        )
    ]
    total = np.zeros((x.shape[0], *sizes, groups, count // groups), np.int64)
    for taps in itertools.product(*map(range, kernel)):
        places = [
            slice(tap * step, tap * step + (size - 1) * stride + 1, stride)
            for tap, step, size, stride in zip(taps, dilation, sizes, strides, strict=True)
        ]
        pixels = wide[(slice(None), *places)].reshape(*total.shape[:-1], channels)
        weight = w[taps].astype(np.int64).reshape(channels, groups, -1)
        total += np.einsum("...gc,cgo->...go", pixels, weight)
    assert np.abs(total).max(initial=0) < 2**31, "the sum leaves int32"
    return total.reshape(*total.shape[:-2], count).astype(np.int32)
