"""Which register tiles and blocks of a product are worth trying when it is tuned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from microkernels.microkernel import Microkernel
from tir_schedules.core.blocking import balanced

from .tile_config import neighbouring_tiles

PIECES = (1, 2, 4, 8, 16)
"""Blocks of rows, of which each is a pass over the weight."""
K_PIECES = (1, 2, 4, 8)
"""Blocks of K, of which each is a visit of the accumulators."""


def register_tiles(
    kernels: Sequence[Microkernel], m: int, n_vectors: int
) -> Iterator[tuple[Microkernel, int, int]]:
    """Every (kernel, rows, vectors) that cuts `m` rows or the columns in another way.

    Vector kernels differ in nothing but the tiles that fit into them: each tile comes with the
    smallest of them.
    """
    vector = sorted((k for k in kernels if not k.by_tiles), key=lambda k: (k.mr * k.vectors, k.mr))
    most_rows = max((kernel.mr for kernel in vector), default=0)
    most_vectors = max((kernel.vectors for kernel in vector), default=0)
    for rows in cuts(m, most_rows):
        for vectors in cuts(n_vectors, most_vectors):
            fitting = (k for k in vector if rows <= k.mr and vectors <= k.vectors)
            kernel = next(fitting, None)
            if kernel is not None:
                yield kernel, rows, vectors


def cuts(total: int, most: int) -> list[int]:
    """The sizes up to `most` that cut `total` into different numbers of pieces."""
    return sorted({balanced(total, size)[0].size for size in range(1, min(total, most) + 1)})


def tiles_and_blocks(
    kernels: Sequence[Microkernel], m: int, n_vectors: int, k: int, bases: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Fields of TileConfigs: every register tile with blocks of rows and of K of several sizes.

    Parameters
    ----------
    kernels : sequence of Microkernel
        What can multiply the operands.
    m, n_vectors, k : int
        Rows, vectors of columns, elements of K.
    bases : sequence of dict
        The default tile of each kernel. Those of AMX tiles come with their neighbours only: their
        blocks follow from the tile registers.
    """
    by_name = {kernel.name: kernel for kernel in kernels}
    m_blocks = {math.ceil(m / pieces) for pieces in PIECES}
    for base in bases:
        kernel = by_name[base["kernel"]]
        if kernel.by_tiles:
            yield from neighbouring_tiles(base, m, k)
        else:
            m_blocks.add(base["m_block"])
    for kernel, rows, vectors in register_tiles(kernels, m, n_vectors):
        steps = kernel.steps(k)
        k_blocks = {math.ceil(steps / pieces) for pieces in K_PIECES}
        k_blocks |= {base["k_block"] for base in bases if not by_name[base["kernel"]].by_tiles}
        for m_block in m_blocks:
            for k_block in k_blocks:
                if m_block >= rows:
                    yield {
                        "kernel": kernel.name,
                        "rows": rows,
                        "vectors": vectors,
                        "m_block": m_block,
                        "k_block": k_block,
                    }
