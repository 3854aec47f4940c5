"""What packages look for in `onnxruntime.capi`: exceptions, and the names of the package.

ONNX Runtime's exceptions are aliases of ours, so code that catches its errors catches ours.
Functions of its library that run no model, such as those that pack 4-bit weights for its
quantisers, are taken from ONNX Runtime if it is installed.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm_hybrid
from tvm_hybrid import errors

Fail = EngineError = EPFail = errors.TvmHybridError
InvalidArgument = errors.FeedError
InvalidGraph = InvalidProtobuf = NoModel = NoSuchFile = NotFound = errors.ModelError
NotImplemented = errors.UnsupportedOperatorError
RuntimeException = errors.CompileError
ModelLoaded = ModelLoadCanceled = ModelRequiresCompilation = errors.ArtifactError

_LIBRARY = "onnxruntime_pybind11_state"
_PACKING = ("quantize_", "pack_")

for _name in (_LIBRARY, "_pybind_state", "onnxruntime_inference_collection"):
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = sys.modules[__name__]


@functools.cache
def _library() -> ModuleType | None:
    """ONNX Runtime's own library, if it is installed."""
    package = PathFinder.find_spec("onnxruntime")
    folders = [] if package is None else package.submodule_search_locations or []
    for path in (
        each for folder in folders for each in Path(folder, "capi").glob(f"{_LIBRARY}*.so")
    ):
        spec = importlib.util.spec_from_file_location(f"{__name__}.real.{_LIBRARY}", path)
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


def __getattr__(name: str) -> Any:
    if name in tvm_hybrid.__all__:
        return getattr(tvm_hybrid, name)
    if name.startswith(_PACKING) and (library := _library()) is not None:
        return getattr(library, name)
    raise AttributeError(f"tvm_hybrid has no {name!r} in place of ONNX Runtime's")
