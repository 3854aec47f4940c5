from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm_ffi import Device

class Module(tvm_ffi.Module):
    def export_library(
        self,
        file_name: str | Path,
        *,
        fcompile: Callable[..., None] | None = None,
        addons: Sequence[str] | None = None,
        workspace_dir: str | None = None,
        **kwargs: Any,
    ) -> str: ...
    def time_evaluator(
        self, func_name: str, dev: Device, number: int = 10, repeat: int = 1, **kwargs: Any
    ) -> Callable[..., Any]: ...

def load_module(path: str) -> Module: ...
def num_threads() -> int: ...
