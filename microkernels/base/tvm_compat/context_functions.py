"""The functions that TVM's modules call for parallel loops, and their replacement.

Needs the variables `__TVMBackendParallelLaunch` and `__TVMBackendParallelBarrier` of modules, which
TVM fills in from a registry of addresses when it loads or makes their code: of two addresses for a
name, the later one counts. The registry only grows.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

_POOL_SIZE = "runtime.NumThreads"
_HOOKS = ("__TVMBackendParallelLaunch", "__TVMBackendParallelBarrier")
_kept: list[Any] = []  # what has to live as long as the process


_CALLED = (
    "TVMBackendParallelLaunch",
    "TVMBackendParallelBarrier",
    "TVMFFIFunctionCall",
    "TVMFFIErrorMoveFromRaised",
    "TVMFFIErrorSetRaised",
    "TVMFFIObjectDecRef",
)


class FunctionsOfTvm(ctypes.Structure):
    """Addresses of the functions of TVM that the pool calls; `Tvm` of tvm_types.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in (*_CALLED, "threads_of_tvm")]


def functions_of_tvm() -> FunctionsOfTvm:
    """Addresses of TVM's functions in this process.

    Needs their names in TVM's libraries, of which `tvm.base._LOADED_LIBS` has the runtime, and that
    `__chandle__` of a function is its address.
    """
    import tvm
    import tvm_ffi

    found = FunctionsOfTvm()
    for name in _CALLED:
        library = tvm.base._LOADED_LIBS["tvm_runtime"] if "Backend" in name else tvm_ffi.LIB
        setattr(found, name, ctypes.cast(getattr(library, name), ctypes.c_void_p))
    size = tvm_ffi.get_global_func(_POOL_SIZE)
    _kept.append(size)
    found.threads_of_tvm = size.__chandle__()
    return found


def load_addresses(path: Path, name: str, count: int) -> list[int]:
    """Loads a file of LLVM code; returns addresses that its function `name` gives by number.

    The code stays as long as the process. Needs `ffi.Module.load_from_file.ll`.
    """
    import tvm_ffi

    module = tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")(str(path), "ll")
    _kept.append(module)
    # Threads may run its code when Python is gone already.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    address = module.get_function(name)
    return [int(address(place)) for place in range(count)]


def replace_parallel(launch: int, barrier: int, number: int) -> None:
    """Makes modules that are loaded from now on call these functions, and all modules `number`.

    Parameters
    ----------
    launch, barrier : int
        Addresses; what they take is in tvm/runtime/c_backend_api.h.
    number : int
        Address of a function of the FFI that says how many threads a parallel loop has.

    Raises
    ------
    RuntimeError
        If TVM refuses.
    """
    import tvm_ffi

    ffi = tvm_ffi.LIB
    for name, address in zip(_HOOKS, (launch, barrier), strict=True):
        _check(ffi.TVMFFIEnvModRegisterContextSymbol(name.encode(), ctypes.c_void_p(address)))
    function = ctypes.c_void_p()
    _check(ffi.TVMFFIFunctionCreate(None, ctypes.c_void_p(number), None, ctypes.byref(function)))
    text = _POOL_SIZE.encode()
    key = _Bytes(text, len(text))
    _check(ffi.TVMFFIFunctionSetGlobal(ctypes.byref(key), function, 1))


class _Bytes(ctypes.Structure):
    """TVMFFIByteArray."""

    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


def _check(code: int) -> None:
    if code:
        raise RuntimeError("TVM refused to have a function replaced")
