"""Which Python has OpenVINO; importing this costs nothing."""

from __future__ import annotations

import os
import sys

PYTHON_VARIABLE = "TVM_HYBRID_OPENVINO_PYTHON"


def openvino_python(path: str | None = None) -> str:
    """The Python to run OpenVINO with: the given one, that of the environment, or this one."""
    return path or os.environ.get(PYTHON_VARIABLE) or sys.executable
