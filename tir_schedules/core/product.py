"""Product: one matrix product of a region, as a configuration computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .config import Config
from .region import Region


class TileConfig(Config, frozen=True, kw_only=True):
    """Base of the configurations of GEMM-like templates.

    Attributes
    ----------
    kernel : str
        The microkernel.
    rows : int
        Most rows of a register tile.
    vectors : int
        Most vectors of columns of a register tile; with the kernel's lanes, the panel's width.
    m_block : int
        Rows that are finished before the next ones are begun; bounds the part of A in cache.
    k_block : int
        Steps of K (kr elements each) between two visits of the accumulators; bounds the part of a
        panel in cache.
    """

    kernel: str
    rows: int
    vectors: int
    m_block: int
    k_block: int


@dataclass(frozen=True, kw_only=True)
class Product:
    """What the busiest thread does of one product.

    Attributes
    ----------
    part : Region
        The product.
    config : TileConfig
        Its numbers.
    m, n, k : int
        Rows, columns and elements of K.
    copies : int
        How many such products one call does; 0 if that is not known beforehand.
    cycles : float
        Estimated.
    others : callable
        () -> kernels that could compute it, and the estimated cycles then.
    name : str
        Which product of the region it is; "" of the only one.
    filled : tuple of int or None
        Rows and elements of K that tiles are filled with; None: `m` and `k`.
    """

    part: Region
    config: TileConfig
    m: int
    n: int
    k: int
    copies: int = 1
    cycles: float
    others: Callable[[], Sequence[tuple[str, float]]]
    name: str = ""
    filled: tuple[int, int] | None = None
