"""Importers: models of other frameworks to Relax modules with static shapes."""

from ..tensors import TensorInfo
from .imported_model import ImportedModel
from .onnx_import import import_onnx

__all__ = ["ImportedModel", "TensorInfo", "import_onnx"]
