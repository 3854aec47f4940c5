"""Names of the contestants of a benchmark, and which Python has OpenVINO; cheap to import."""

from __future__ import annotations

import os
import sys

OURS = "tvm_hybrid"
ONNX_RUNTIME = "ONNX Runtime"
STOCK_TVM = "stock TVM"
OPENVINO = "OpenVINO"
PEERS = {"ort": ONNX_RUNTIME, "openvino": OPENVINO, "stock": STOCK_TVM}
# Contestants whose products of bytes may saturate; see `onnx_runtime.why_products_differ`.
SATURATING = (ONNX_RUNTIME, OPENVINO)
PYTHON_VARIABLE = "TVM_HYBRID_OPENVINO_PYTHON"


def openvino_python(path: str | None = None) -> str:
    """The Python to run OpenVINO with: `path`, or that of the environment, or this one."""
    return path or os.environ.get(PYTHON_VARIABLE) or sys.executable
