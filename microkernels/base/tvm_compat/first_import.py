"""Imports TVM in half the CPU time that `import tvm` takes, and leaves the same state.

Of 1.2 CPU s, TVM spends 0.3 on the backtrace of its first C++ error, which reads the symbols of
every library: TVM raises a hundred errors while it is imported, and ignores them all. Another 0.2
goes into lists of all global functions, one for each of 52 modules, and 0.1 into Python's garbage
collector.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_SWITCH = "TVM_DEVICE_BACKEND_AUTOLOAD"
_DISCO = "tvm.runtime.disco"
_NAMED = {("tirx.s_tir.ldg32", "TScriptPrinterName")}  # by C++, with the priority of backends

_lock = threading.RLock()


def import_tvm() -> None:
    """Imports TVM, unless it is imported already.

    Needs `tvm.backend._autoload_backends`: its function of that name is the last step of
    `import tvm`, which TVM_DEVICE_BACKEND_AUTOLOAD=0 turns off, and which `_AUTO_LOAD_DONE` keeps
    from running twice.
    """
    if "tvm" in sys.modules:
        tvm: Any = import_module("tvm")  # once another thread has imported it
        # TVM's last step calls our hook, in a thread that must not wait for one that waits for it.
        if not tvm.__spec__._initializing:
            with _lock:
                return
        return
    with _lock, without_collections(), _names_listed_once():
        if "tvm" in sys.modules:
            return
        switch = os.environ.get(_SWITCH)
        os.environ[_SWITCH] = "0"
        try:
            _import_but_backends()
        finally:
            del os.environ[_SWITCH]
            if switch is not None:
                os.environ[_SWITCH] = switch
        backends: Any = import_module("tvm.backend._autoload_backends")
        backends._AUTO_LOAD_DONE = False
        with _quick_errors():
            backends._autoload_backends()


@contextmanager
def without_collections() -> Iterator[None]:
    """Keeps Python's garbage collector off: imports make many objects and no garbage.

    Afterwards these objects count as old, or the next collection would look through all of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _import_but_backends() -> None:
    """Imports TVM without `tvm.runtime.disco`, which cannot be imported then."""
    # Needs that TVM does without this module: its C++ classes are in a library that only the last
    # step loads.
    sys.modules[_DISCO] = None  # type: ignore[assignment]
    try:
        tvm = import_module("tvm")
    finally:
        del sys.modules[_DISCO]
    # A TVM without a compiler takes no notice of unknown classes, so it can import the module.
    if tvm.base._RUNTIME_ONLY:
        tvm.runtime.disco = import_module(_DISCO)


@contextmanager
def _names_listed_once() -> Iterator[None]:
    """Has `tvm_ffi.init_ffi_api` list names of global functions only when there are new ones."""
    # Needs `tvm_ffi.registry.list_global_func_names`, which asks what the global function
    # `ffi.FunctionListGlobalNamesFunctor` returns for the number of names, then for each.
    registry: Any = import_module("tvm_ffi.registry")
    stock = registry.list_global_func_names
    names: list[str] = []

    def listed() -> list[str]:
        name_of = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()
        count = name_of(-1)
        if count != len(names):
            names[:] = map(name_of, range(count))
        return list(names)

    registry.list_global_func_names = listed
    try:
        yield
    finally:
        registry.list_global_func_names = stock


@contextmanager
def _quick_errors() -> Iterator[None]:
    """Raises in Python the errors that TVM's backends run into, and ignore."""
    # Needs `tvm.tirx.script.builder.ir`, which for the names that the printer gives operators asks
    # `Op.get` for operators that do not exist, and `_register_op_attr` for a name that C++ has
    # given already.
    op: Any = import_module("tvm.ir").Op
    builder: Any = import_module("tvm.tirx.script.builder.ir")
    get, register = op.get, builder._register_op_attr
    known = set(op.list_op_names())

    def quick_get(name: str) -> Any:
        if name not in known:
            raise AttributeError(name)
        return get(name)

    def quick_register(name: str, key: str, value: Any = None, level: int = 10) -> Any:
        if (name, key) in _NAMED:
            raise ValueError(f"{name} has {key}")
        return register(name, key, value, level)

    op.get, builder._register_op_attr = staticmethod(quick_get), quick_register
    try:
        yield
    finally:
        op.get, builder._register_op_attr = staticmethod(get), register
