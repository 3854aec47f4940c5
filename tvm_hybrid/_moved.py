"""Old names of public modules: they work for one release, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "tvm_hybrid.dlight": "tvm_hybrid.tvm_routes.dlight",
    "tvm_hybrid.explanation": "tvm_hybrid.explain.explanation",
    "tvm_hybrid.metaschedule": "tvm_hybrid.tvm_routes.metaschedule",
}


def install() -> None:
    """Lets `import` find modules by their old names; calling it again changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(MetaPathFinder, Loader):
    """Comes last in `sys.meta_path`, so it is asked only for modules that no other finder finds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(
            f"the module {module.__name__} is now {new}", DeprecationWarning, stacklevel=2
        )
        home = import_module(new)
        vars(module)["__getattr__"] = partial(getattr, home)
        vars(module)["__all__"] = [name for name in vars(home) if not name.startswith("_")]
