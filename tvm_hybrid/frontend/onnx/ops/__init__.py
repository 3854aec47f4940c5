"""Converters from ONNX operators to Relax, by family; importing this registers all.

In: a node whose constants are known. Out: a Relax expression. All files in this folder are
imported.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
