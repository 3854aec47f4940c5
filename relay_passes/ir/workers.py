"""Threads that share tasks of LLVM, and the machine code of loaded or compiled modules.

Programs are loaded without the compiler, so this imports no pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from tvm.runtime import Module

from microkernels.base.tvm_compat import relax as tvm_compat
from relay_passes.ir.stages import advance


def emit_machine_code(executable: Module) -> None:
    """Makes the machine code of an executable's LLVM modules now, several at once.

    Otherwise TVM makes it when it looks for a module's first kernel, one module after the other.
    """
    modules = [each for each in executable.imports if each.kind == "llvm"]
    if threads_for(len(modules)) == 1:
        for done, module in enumerate(modules, 1):
            tvm_compat.emit_machine_code(module)
            advance(done, len(modules))
        return
    with workers(len(modules)) as pool:
        wait_for([pool.submit(tvm_compat.emit_machine_code, module) for module in modules])


def wait_for(tasks: Sequence[Future[Any]]) -> None:
    """Waits for all tasks, and tells listeners how many are done; raises the first error."""
    for done, task in enumerate(as_completed(tasks), 1):
        task.result()
        advance(done, len(tasks))


@contextmanager
def workers(tasks: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for some tasks; those that have not begun when one fails, or on Ctrl-C, never do."""
    pool = ThreadPoolExecutor(threads_for(tasks))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def threads_for(tasks: int) -> int:
    """How many threads share some tasks: no more than the CPUs that the process may use."""
    return max(1, min(tasks, len(os.sched_getaffinity(0))))
