"""A stand-in for ONNX Runtime's module, for packages that import it by name.

    import sys, tvm_hybrid.onnxruntime
    sys.modules["onnxruntime"] = tvm_hybrid.onnxruntime      # before the package is imported

Names are those of `tvm_hybrid`; `capi` has the exceptions. Parts of ONNX Runtime that do not run
models, such as `quantization`, `tools` and `transformers`, come from the real package if it is
installed, and use our sessions.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from typing import Any

import tvm_hybrid

__version__ = "1.32.0"  # of ONNX Runtime's interface; get_version_string returns our version
__all__ = list(tvm_hybrid.__all__)

_real = PathFinder.find_spec("onnxruntime")  # searches the path, not this module in sys.modules
if _real is not None and _real.submodule_search_locations is not None:
    __path__ = [*__path__, *_real.submodule_search_locations]


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in __all__:
        raise AttributeError(
            f"tvm_hybrid has no {name!r} in place of ONNX Runtime's; docs/onnxruntime.md lists "
            "what is not here"
        )
    return getattr(tvm_hybrid, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
