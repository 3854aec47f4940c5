"""Functions of TVM's runtime that have no name in Python, or a private one."""

from __future__ import annotations

import functools
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

GetFunction = Callable[[str], Any]
"""Finds a global function by its name: `tvm_ffi.get_global_func`, or `get_function` of a session
with a server."""

_BUILD = "target.build.llvm"
_ONE_CORE_PER_THREAD = -2  # ThreadGroup::kSpecifyOneCorePerThread
_SHARE_ALL_CORES = -3  # ThreadGroup::kSpecifyThreadShareAllCore


def only_runtime() -> bool:
    """Whether this process has TVM's runtime without its compiler.

    Needs `tvm.base._RUNTIME_ONLY`.
    """
    import tvm

    return bool(tvm.base._RUNTIME_ONLY)


def check_builds(check: Callable[[Any, Any], None]) -> None:
    """Calls `check` with the module and the target before LLVM gets a module of TVM's.

    The check may raise an error. Needs the global function `target.build.llvm`, which every route
    through `tvm.tirx.build` calls; without LLVM it does not exist, and nothing is checked.
    """
    import tvm

    build = tvm.get_global_func(_BUILD, allow_missing=True)
    if build is None:
        return

    def checked(mod: Any, target: Any) -> Any:
        check(mod, target)
        return build(mod, target)

    tvm.register_global_func(_BUILD, checked, override=True)


def configure_threads(
    get_function: GetFunction, count: int, cpus: Sequence[int] = (), bound: bool = False
) -> int:
    """Makes the calling thread's pool split parallel loops over `count` threads.

    Needs `runtime.config_threadpool`, which takes a mode, a number and the CPUs that threads may
    run on, written as text, and its modes: -3, every thread may run on all of them, and -2, the
    n-th worker on the n-th alone. In both the calling thread may run on all of them afterwards.

    Parameters
    ----------
    get_function : callable
        Finds functions of the process to configure.
    count : int
        Threads, the calling one included.
    cpus : sequence of int
        CPUs to run on; all of them if empty. A new pool gets a worker for each.
    bound : bool
        Whether each worker is bound to one CPU: `cpus` needs at least one for each thread.

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
    """How many threads run a parallel loop. Needs `runtime.NumThreads`."""
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
    """Whether an error says that sizes do not match what a program expects.

    Needs the words `ErrorContext(match_cast` in the message.
    """
    return "ErrorContext(match_cast" in str(error)


# Requests to TVM's RPC tracker, and its answers.
#
# Needs from `tvm.rpc.base` the number that both sides send first, the codes of requests, and the
# form of a message: a length and JSON.


def greet(connection: socket.socket) -> int | None:
    """Greets a tracker; returns None, or the number with which something else answered.

    Raises
    ------
    OSError, struct.error
        If nothing answers.
    """
    from tvm.rpc import base

    connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
    answer = int(struct.unpack("<i", base.recvall(connection, 4))[0])
    return None if answer == base.RPC_TRACKER_MAGIC else answer


def count_servers(connection: socket.socket, key: str) -> int:
    """How many servers of a key there are, free or not; raises as `request_server`."""
    from tvm.rpc import base

    found = _ask(connection, [base.TrackerCode.SUMMARY])
    return sum(info.get("key") == f"server:{key}" for info in found["server_info"])


def request_server(connection: socket.socket, key: str) -> tuple[str, int, str]:
    """Host, port and password of the next free server of a key; waits until there is one.

    Raises
    ------
    OSError, ValueError, TypeError, struct.error
        If the tracker does not answer, or refuses.
    """
    from tvm.rpc import base

    host, port, password = _ask(connection, [base.TrackerCode.REQUEST, key, "", 1])
    return host, port, password


def _ask(connection: socket.socket, question: list[Any]) -> Any:
    from tvm.rpc import base

    base.sendjson(connection, question)
    code, answer = base.recvjson(connection)
    if code != base.TrackerCode.SUCCESS:
        raise ValueError(f"it answers {code}")
    return answer
