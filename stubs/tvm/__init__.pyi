"""TVM 0.27 as far as the project uses it, for mypy: TVM's own sources are hardly annotated.

A name that is missing here is an error for mypy: add it. `tests/test_stubs.py` finds every name in
the installed TVM.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tvm_ffi import Device, Function, get_global_func, register_global_func
from tvm_ffi import dtype as DataType

from . import (
    base,
    error,
    ir,
    relax,
    rpc,
    runtime,
    s_tir,
    script,
    support,
    sym,
    target,
    te,
    tirx,
    topi,
)
from .ir import IRModule
from .ir.transform import Pass
from .runtime.executable import Executable
from .target import Target

__all__ = [
    "DataType",
    "Device",
    "Function",
    "IRModule",
    "base",
    "error",
    "get_global_func",
    "ir",
    "register_global_func",
    "relax",
    "rpc",
    "runtime",
    "s_tir",
    "script",
    "support",
    "sym",
    "target",
    "te",
    "tirx",
    "topi",
]

__version__: str

def compile(
    mod: tirx.PrimFunc | IRModule,
    target: Target | Mapping[str, Any] | None = None,
    *,
    relax_pipeline: Pass | Callable[..., IRModule] | str | None = "default",
    tir_pipeline: Pass | Callable[..., IRModule] | str | None = "default",
) -> Executable: ...
def cpu(dev_id: int = 0) -> Device: ...
