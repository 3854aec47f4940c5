"""Importers: models of other frameworks as Relax modules with named inputs and outputs.

Names are imported at first use: a session that finds its program in the cache only reads the bytes
of a model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runtime.tensors import OutputInfo, TensorInfo
    from .model_input import ImportedModel
    from .onnx.onnx_import import import_onnx

__all__ = ["ImportedModel", "OutputInfo", "TensorInfo", "import_onnx"]

_HOMES = {
    "ImportedModel": "frontend.model_input",
    "OutputInfo": "runtime.tensors",
    "TensorInfo": "runtime.tensors",
    "import_onnx": "frontend.onnx.onnx_import",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"tvm_hybrid.{_HOMES[name]}"), name)
