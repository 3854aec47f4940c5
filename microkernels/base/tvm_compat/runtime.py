"""Functions of TVM's runtime that have no name in Python, or a private one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

GetFunction = Callable[[str], Any]
"""Finds a global function by its name: `tvm_ffi.get_global_func`, or `get_function` of a session at
a server."""

_ONE_CORE_PER_THREAD = -2  # ThreadGroup::kSpecifyOneCorePerThread
_SHARE_ALL_CORES = -3  # ThreadGroup::kSpecifyThreadShareAllCore


def only_runtime() -> bool:
    """Whether this process has TVM's runtime without its compiler.

    Needs `tvm.base._RUNTIME_ONLY`.
    """
    import tvm

    return bool(tvm.base._RUNTIME_ONLY)


def configure_threads(
    get_function: GetFunction, count: int, cpus: Sequence[int] = (), bound: bool = False
) -> int:
    """Makes the calling thread's pool split parallel loops over so many threads.

    Needs `runtime.config_threadpool`, which takes a mode, a number and the CPUs that threads may
    run on, written as text, and its modes: -3, every thread may run on all of them, and -2, the
    n-th worker on the n-th alone. In both the calling thread may run on all of them afterwards.

    Parameters
    ----------
    get_function : callable
        Says in which process.
    count : int
        The calling thread included.
    cpus : sequence of int
        All of them, if none are named. A pool that is new gets as many workers as there are.
    bound : bool
        Whether each worker is bound to one of them: at least as many as the pool has threads.

    Returns
    -------
    int
        How many threads the pool has; fewer than `count` if it was made before.
    """
    named = [[str(cpu) for cpu in cpus]] if cpus else []
    mode = _ONE_CORE_PER_THREAD if bound else _SHARE_ALL_CORES
    get_function("runtime.config_threadpool")(mode, count, *named)
    return available_threads(get_function)


def available_threads(get_function: GetFunction) -> int:
    """How many threads a parallel loop has. Needs `runtime.NumThreads`."""
    return int(get_function("runtime.NumThreads")())


def system_cpu(get_function: GetFunction) -> str:
    """LLVM's name of a process's CPU. Needs `target.llvm_get_system_cpu`.

    Raises
    ------
    AttributeError
        If a server has only TVM's runtime.
    """
    return str(get_function("target.llvm_get_system_cpu")())


@functools.cache
def create_view() -> Any:
    """The function (tensor, shape, type, offset) -> tensor over the same memory.

    Needs `runtime.TVMTensorCreateView`, which `Tensor._create_view` calls, 7 times as slowly.
    """
    import tvm

    return tvm.get_global_func("runtime.TVMTensorCreateView")


def open_library(path: str) -> Any:
    """The module of a shared library, whatever its file is called.

    Needs `ffi.Module.load_from_file.so`, which `tvm.runtime.load_module` calls if a name ends so.
    """
    import tvm

    return tvm.get_global_func("ffi.Module.load_from_file.so")(path, "so")


def holds_program(module: Any) -> bool:
    """Whether a module holds a program for the virtual machine.

    Needs the module's function `vm_load_executable`, which `relax.VirtualMachine` calls.
    """
    return bool(module.implements_function("vm_load_executable", query_imports=True))


def is_size_error(error: Exception) -> bool:
    """Whether sizes that a program matches did not fit.

    Needs the words `ErrorContext(match_cast` in the message.
    """
    return "ErrorContext(match_cast" in str(error)
