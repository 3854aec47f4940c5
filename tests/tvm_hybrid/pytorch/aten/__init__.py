"""Cases of every ATen operator that is imported, by family: a module a family."""

from __future__ import annotations

from . import reductions
from .calls import Family

FAMILIES: dict[str, Family] = {**reductions.FAMILIES}
"""The families by their names; each is compiled as one program."""
