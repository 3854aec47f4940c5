"""Cases of every ATen operator that is imported, by family: a module a family."""

from __future__ import annotations

from . import along_axes, reductions, scatterings, windowed
from .calls import Family

FAMILIES: dict[str, Family] = {
    **reductions.FAMILIES,
    **scatterings.FAMILIES,
    **along_axes.FAMILIES,
    **windowed.FAMILIES,
}
"""The families by their names; each is compiled as one program."""
