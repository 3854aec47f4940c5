"""Runs DNN models on Xeon-class CPUs at hand-written-library speed, through Apache TVM.

    session = tvm_hybrid.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})

Names are imported on first use, so that importing the package costs almost nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from microkernels.base import logs

from . import _moved, version_check
from .version_check import __version__ as __version__

if TYPE_CHECKING:
    from relay_passes.ir.stages import Stage as Stage

    from . import errors as errors
    from .api import compile as compile
    from .executable.executable import Executable as Executable
    from .executable.load import load as load
    from .frontend import import_onnx as import_onnx
    from .options import CompileOptions as CompileOptions
    from .pytorch.programs import torch_programs as torch_programs
    from .quantization import quantize as quantize
    from .session.inference_session import InferenceSession as InferenceSession
    from .session.io_binding import IOBinding as IOBinding
    from .session.onnxruntime_api.model_surface import ModelMetadata as ModelMetadata
    from .session.onnxruntime_api.model_surface import NodeArg as NodeArg
    from .session.onnxruntime_api.ort_value import OrtDevice as OrtDevice
    from .session.onnxruntime_api.ort_value import OrtValue as OrtValue
    from .session.onnxruntime_api.random_seed import set_seed as set_seed
    from .session.onnxruntime_api.run_options import RunOptions as RunOptions
    from .session.onnxruntime_api.session_options import *  # noqa: F403
    from .targets.resolve import resolve_target as resolve_target
    from .tuning import tune as tune
    from .tvm_routes import dlight as dlight
    from .tvm_routes import metaschedule as metaschedule
    from .tvm_routes.byoc import partition_for_tvm_hybrid as partition_for_tvm_hybrid
    from .tvm_routes.tensorized import tensorize as tensorize

# Module -> its public names.
_NAMES = {
    "api": ["compile"],
    "executable.executable": ["Executable"],
    "executable.load": ["load"],
    "frontend": ["import_onnx"],
    "options": ["CompileOptions"],
    "pytorch.programs": ["torch_programs"],
    "quantization": ["quantize"],
    "session.inference_session": ["InferenceSession"],
    "session.io_binding": ["IOBinding"],
    "session.onnxruntime_api.model_surface": ["ModelMetadata", "NodeArg"],
    "session.onnxruntime_api.ort_value": ["OrtDevice", "OrtValue"],
    "session.onnxruntime_api.random_seed": ["set_seed"],
    "session.onnxruntime_api.run_options": ["RunOptions"],
    "session.onnxruntime_api.session_options": [
        *("ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "SessionOptions"),
        *("disable_telemetry_events", "enable_telemetry_events", "get_all_providers"),
        *("get_available_providers", "get_build_info", "get_device", "get_version_string"),
        *("preload_dlls", "set_default_logger_severity", "set_default_logger_verbosity"),
    ],
    "session.progress": ["Stage"],
    "targets.resolve": ["resolve_target"],
    "tuning": ["tune"],
    "tvm_routes.byoc": ["partition_for_tvm_hybrid"],
    "tvm_routes.tensorized": ["tensorize"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {
    "dlight": "tvm_routes.dlight",
    "errors": "errors",
    "metaschedule": "tvm_routes.metaschedule",
}
__all__ = sorted([*_HOMES, *_MODULES])

version_check.check()
logs.configure_from_environment()
_moved.install()

if hasattr(sys.modules.get("tvm"), "relax"):
    # TVM was imported before us; its hook has not run if we are not installed.
    import_module("._autoload", __name__).register()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{_MODULES[name]}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("._autoload", __name__).register()
    with import_module("microkernels.base.tvm_compat.first_import").without_collections():
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
