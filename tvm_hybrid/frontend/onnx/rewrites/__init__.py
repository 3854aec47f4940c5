"""Rewrites of single ONNX nodes, one operator (family) per file; importing this registers all.

To add one, write a function under `@rewrites("OpType", domain="...")`. Every file of this folder is
imported.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .registry import Rewrite, rewrite, rewrites

__all__ = ["Rewrite", "rewrite", "rewrites"]

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
