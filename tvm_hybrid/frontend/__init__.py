"""Importers: models of other frameworks to Relax modules with inputs of static shapes."""

from ..runtime.tensors import OutputInfo, TensorInfo
from .imported_model import ImportedModel
from .onnx_import import import_onnx
from .open_model import OpenModel, open_model

__all__ = ["ImportedModel", "OpenModel", "OutputInfo", "TensorInfo", "import_onnx", "open_model"]
