"""Cases of every ATen operator that is imported, one module for each family."""

from __future__ import annotations

from . import (
    along_axes,
    arithmetic,
    creation,
    elementwise,
    images,
    movement,
    products,
    reductions,
    scatterings,
    selection,
    windowed,
)
from .calls import Family

_MODULES = (
    *(along_axes, arithmetic, creation, elementwise, images, movement, products, reductions),
    *(scatterings, selection, windowed),
)
FAMILIES: dict[str, Family] = {
    name: family for module in _MODULES for name, family in module.FAMILIES.items()
}
"""The families by their names; each is compiled as one program."""
