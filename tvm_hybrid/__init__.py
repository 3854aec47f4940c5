"""Runs DNN models on Xeon-class CPUs at hand-written-library speed, through Apache TVM.

    session = tvm_hybrid.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x})

Names are imported when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from microkernels.base import logs

from . import _moved, version_check
from .version_check import __version__ as __version__

if TYPE_CHECKING:
    from relay_passes.ir.stages import Stage

    from . import errors
    from .api import compile
    from .executable.executable import Executable
    from .executable.load import load
    from .frontend import import_onnx
    from .options import CompileOptions
    from .pytorch.programs import torch_programs
    from .quantization import quantize
    from .session.inference_session import InferenceSession
    from .session.io_binding import IOBinding
    from .session.onnxruntime_api.model_surface import ModelMetadata, NodeArg
    from .session.onnxruntime_api.ort_value import OrtValue
    from .session.onnxruntime_api.run_options import RunOptions
    from .session.onnxruntime_api.session_options import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        SessionOptions,
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_build_info,
        get_device,
        get_version_string,
        preload_dlls,
        set_default_logger_severity,
        set_default_logger_verbosity,
    )
    from .targets.resolve import resolve_target
    from .tuning import tune
    from .tvm_routes import dlight, metaschedule
    from .tvm_routes.byoc import partition_for_tvm_hybrid
    from .tvm_routes.tensorized import tensorize

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
    "Executable": "executable.executable",
    "ExecutionMode": "session.onnxruntime_api.session_options",
    "ExecutionOrder": "session.onnxruntime_api.session_options",
    "GraphOptimizationLevel": "session.onnxruntime_api.session_options",
    "IOBinding": "session.io_binding",
    "InferenceSession": "session.inference_session",
    "ModelMetadata": "session.onnxruntime_api.model_surface",
    "NodeArg": "session.onnxruntime_api.model_surface",
    "OrtValue": "session.onnxruntime_api.ort_value",
    "RunOptions": "session.onnxruntime_api.run_options",
    "SessionOptions": "session.onnxruntime_api.session_options",
    "Stage": "session.progress",
    "compile": "api",
    "disable_telemetry_events": "session.onnxruntime_api.session_options",
    "enable_telemetry_events": "session.onnxruntime_api.session_options",
    "get_all_providers": "session.onnxruntime_api.session_options",
    "get_available_providers": "session.onnxruntime_api.session_options",
    "get_build_info": "session.onnxruntime_api.session_options",
    "get_device": "session.onnxruntime_api.session_options",
    "get_version_string": "session.onnxruntime_api.session_options",
    "import_onnx": "frontend",
    "load": "executable.load",
    "partition_for_tvm_hybrid": "tvm_routes.byoc",
    "preload_dlls": "session.onnxruntime_api.session_options",
    "quantize": "quantization",
    "resolve_target": "targets.resolve",
    "set_default_logger_severity": "session.onnxruntime_api.session_options",
    "set_default_logger_verbosity": "session.onnxruntime_api.session_options",
    "tensorize": "tvm_routes.tensorized",
    "torch_programs": "pytorch.programs",
    "tune": "tuning",
}

_MODULES = {
    "dlight": "tvm_routes.dlight",
    "errors": "errors",
    "metaschedule": "tvm_routes.metaschedule",
}

version_check.check()
logs.configure_from_environment()
_moved.install()

if hasattr(sys.modules.get("tvm"), "relax"):
    # TVM was imported before us; if we are not installed, its hook has not run.
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
