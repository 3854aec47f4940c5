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
from .version_check import __version__ as __version__

if TYPE_CHECKING:
    from relay_passes.stages import Stage

    from . import dlight, errors, metaschedule
    from .api import compile
    from .byoc import partition_for_tvm_hybrid
    from .executable import Executable
    from .frontend import import_onnx
    from .io_binding import IOBinding
    from .load_executable import load
    from .node_arg import NodeArg
    from .onnxruntime_api.levels import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
    from .onnxruntime_api.model_metadata import ModelMetadata
    from .onnxruntime_api.ort_value import OrtValue
    from .onnxruntime_api.process_settings import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_build_info,
        get_version_string,
        preload_dlls,
        set_default_logger_severity,
        set_default_logger_verbosity,
    )
    from .onnxruntime_api.providers import get_all_providers, get_available_providers, get_device
    from .onnxruntime_api.run_options import RunOptions
    from .onnxruntime_api.session_options import SessionOptions
    from .options import CompileOptions
    from .pytorch.programs import torch_programs
    from .quantization import quantize
    from .session import InferenceSession
    from .targets import resolve_target
    from .tensorized import tensorize
    from .tuning import tune

__all__ = [
    "CompileOptions",
    "Executable",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "Stage",
    "compile",
    "disable_telemetry_events",
    "dlight",
    "enable_telemetry_events",
    "errors",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "import_onnx",
    "load",
    "metaschedule",
    "partition_for_tvm_hybrid",
    "preload_dlls",
    "quantize",
    "resolve_target",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "tensorize",
    "torch_programs",
    "tune",
]

_HOMES = {
    "CompileOptions": "options",
    "Executable": "executable",
    "ExecutionMode": "onnxruntime_api.levels",
    "ExecutionOrder": "onnxruntime_api.levels",
    "GraphOptimizationLevel": "onnxruntime_api.levels",
    "IOBinding": "io_binding",
    "InferenceSession": "session",
    "ModelMetadata": "onnxruntime_api.model_metadata",
    "NodeArg": "node_arg",
    "OrtValue": "onnxruntime_api.ort_value",
    "RunOptions": "onnxruntime_api.run_options",
    "SessionOptions": "onnxruntime_api.session_options",
    "Stage": "progress",
    "compile": "api",
    "disable_telemetry_events": "onnxruntime_api.process_settings",
    "enable_telemetry_events": "onnxruntime_api.process_settings",
    "get_all_providers": "onnxruntime_api.providers",
    "get_available_providers": "onnxruntime_api.providers",
    "get_build_info": "onnxruntime_api.process_settings",
    "get_device": "onnxruntime_api.providers",
    "get_version_string": "onnxruntime_api.process_settings",
    "import_onnx": "frontend",
    "load": "load_executable",
    "partition_for_tvm_hybrid": "byoc",
    "preload_dlls": "onnxruntime_api.process_settings",
    "quantize": "quantization",
    "resolve_target": "targets",
    "set_default_logger_severity": "onnxruntime_api.process_settings",
    "set_default_logger_verbosity": "onnxruntime_api.process_settings",
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
    with import_module(".tvm_compat.first_import", __name__).without_collections():
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
