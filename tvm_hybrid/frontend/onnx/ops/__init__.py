"""Converters from ONNX operators to Relax, by family; importing this registers all.

In: a node whose constants are known. Out: a Relax expression. Every file of this folder and of
`data_sized` is imported.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .. import data_sized

for _package in (data_sized.__name__, __name__):
    for _module in iter_modules(import_module(_package).__path__, f"{_package}."):
        import_module(_module.name)
