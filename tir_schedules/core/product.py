"""Product: one matrix product of a region, as a configuration computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .product_plan import ProductPlan
from .region import Region


@dataclass(frozen=True, kw_only=True)
class Product:
    """What the busiest thread does of one product.

    Attributes
    ----------
    part : Region
        The product.
    plan : ProductPlan
        How it is cut.
    copies : int
        How many such products one call does; 0 if that is not known beforehand.
    cycles : float
        Estimated.
    others : callable
        () -> kernels that could compute it, and the estimated cycles then.
    name : str
        Which product of the region it is; "" of the only one.
    filled : tuple of int or None
        Rows and elements of K that tiles are filled with; None: all of them.
    """

    part: Region
    plan: ProductPlan
    copies: int = 1
    cycles: float
    others: Callable[[], Sequence[tuple[str, float]]]
    name: str = ""
    filled: tuple[int, int] | None = None
