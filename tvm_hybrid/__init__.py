"""Runs DNN models on Xeon-class CPUs at hand-written-library speed, through Apache TVM.

    session = tvm_hybrid.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})

Names are imported when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import logs, version_check

if TYPE_CHECKING:
    from . import dlight, errors, metaschedule
    from .api import compile
    from .byoc import partition_for_tvm_hybrid
    from .executable import Executable, load
    from .frontend import import_onnx
    from .pytorch.programs import torch_programs
    from .quantization import quantize
    from .session import InferenceSession
    from .targets import resolve_target
    from .tensorized import tensorize
    from .tuning import tune

__version__ = "0.2.0"

__all__ = [
    "Executable",
    "InferenceSession",
    "compile",
    "dlight",
    "errors",
    "import_onnx",
    "load",
    "metaschedule",
    "partition_for_tvm_hybrid",
    "quantize",
    "resolve_target",
    "tensorize",
    "torch_programs",
    "tune",
]

_HOMES = {
    "Executable": "executable",
    "InferenceSession": "session",
    "compile": "api",
    "import_onnx": "frontend",
    "load": "executable",
    "partition_for_tvm_hybrid": "byoc",
    "quantize": "quantization",
    "resolve_target": "targets",
    "tensorize": "tensorized",
    "torch_programs": "pytorch.programs",
    "tune": "tuning",
}

_MODULES = ("dlight", "errors", "metaschedule")

version_check.check()
logs.configure_from_environment()

if hasattr(sys.modules.get("tvm"), "relax"):
    # TVM was imported before us; if we are not installed, its hook has not run.
    import_module("._autoload", __name__).register()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("._autoload", __name__).register()
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
