from . import onnx_frontend as onnx_frontend
from .onnx_frontend import from_onnx as from_onnx
