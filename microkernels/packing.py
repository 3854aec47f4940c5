"""Packing of constant weights into the panels that microkernels read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base.arrays import aligned_empty
from .microkernel import Microkernel


def pack_weight(weight: np.ndarray, widths: Sequence[int], kernel: Microkernel) -> np.ndarray:
    """[K, N] as consecutive panels [K/kr][columns][kr].

    Parameters
    ----------
    weight : ndarray
        Shape (K, N).
    widths : sequence of int
        Width of every panel, in vectors of `kernel.lanes` columns; together they cover N.
    kernel : Microkernel
        Gives lanes and kr.

    Returns
    -------
    ndarray
        Flat, padded with zeros, aligned.
    """
    k, n = weight.shape
    kr, lanes = kernel.kr, kernel.lanes
    steps = kernel.steps(k)
    padded, shape = weight, (steps * kr, sum(widths) * lanes)
    if shape != weight.shape:
        padded = np.zeros(shape, dtype=weight.dtype)
        padded[:k, :n] = weight
    blocks = padded.reshape(steps, kr, -1)
    packed = aligned_empty([padded.size], weight.dtype)
    position = column = 0
    for width in widths:
        columns = width * lanes
        panel = blocks[:, :, column : column + columns].transpose(0, 2, 1)
        packed[position : position + panel.size].reshape(panel.shape)[...] = panel
        position += panel.size
        column += columns
    return packed
