"""Tells listeners which stage of compilation begins, and how far it has got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from tvm import IRModule, relax, tirx
from tvm.runtime import Module

from microkernels.base.cpu_quota import busy_cpus
from microkernels.base.tvm_compat import relax as tvm_compat


@dataclass(frozen=True)
class Stage:
    """A stage of compilation that begins, or of which a part is done.

    Parameters
    ----------
    number, count : int
        Number of the stage, and how many stages there are.
    title : str
        Name of the stage.
    size : str
        Size of the module so far, such as "operators: 30, regions: 12".
    done, parts : int
        How many of the stage's parts are done; both are 0 if the stage is not counted. The parts of
        the last two stages are groups of kernels.
    """

    number: int
    count: int
    title: str
    size: str
    done: int = 0
    parts: int = 0


Listener = Callable[[Stage], object]


@dataclass
class _Listening:
    """A listener, and the last stage that it was told."""

    listener: Listener
    stage: Stage | None = None

    def tell(self, stage: Stage) -> None:
        self.stage = stage
        self.listener(stage)


_listening: ContextVar[_Listening | None] = ContextVar("tvm_hybrid_stages", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Calls `listener` with every stage of this thread's compilations inside the block."""
    token = _listening.set(_Listening(listener))
    try:
        yield
    finally:
        _listening.reset(token)


def has_listener() -> bool:
    """Whether there is a listener for this thread's compilations."""
    return _listening.get() is not None


def announce(number: int, count: int, title: str, mod: IRModule | None = None) -> None:
    """Tells the listener that a stage begins on this module."""
    current = _listening.get()
    if current is not None:
        current.tell(Stage(number, count, title, "" if mod is None else size_of(mod)))


def announce_machine_code() -> None:
    """Tells the listener that the last stage begins: LLVM makes machine code."""
    current = _listening.get()
    if current is not None:
        last = 1 if current.stage is None else current.stage.count
        current.tell(Stage(last, last, "machine code", ""))


def advance(done: int, parts: int) -> None:
    """Tells the listener how many parts of the stage are done."""
    current = _listening.get()
    if current is not None and current.stage is not None:
        current.tell(replace(current.stage, done=done, parts=parts))


def size_of(mod: IRModule) -> str:
    """The numbers of operators, regions and kernels of a module; zeros are omitted."""
    from relay_passes.ir.functions import is_region_function  # needs the compiler

    functions = [function for _, function in mod.functions_items()]
    regions = sum(map(is_region_function, functions))
    kernels = sum(isinstance(function, tirx.PrimFunc) for function in functions)
    operators = sum(
        isinstance(binding.value, relax.Call)
        for function in functions
        if isinstance(function, relax.Function) and not is_region_function(function)
        for block in getattr(function.body, "blocks", ())
        for binding in block.bindings
    )
    counts = {"operators": operators, "regions": regions, "kernels": kernels}
    return ", ".join(f"{what}: {count}" for what, count in counts.items() if count)


# Threads for LLVM's tasks, and the machine code of loaded or compiled modules.
#
# Programs are loaded without the compiler, so this imports no pass.


def emit_machine_code(executable: Module) -> None:
    """Makes the machine code of an executable's LLVM modules now, several at once.

    Otherwise TVM makes it at the first look-up of a kernel, one module after the other.
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
    """Waits for all tasks and tells the listener how many are done; raises the first error."""
    for done, task in enumerate(as_completed(tasks), 1):
        task.result()
        advance(done, len(tasks))


@contextmanager
def workers(tasks: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for some tasks; on an error or Ctrl-C, tasks that have not begun are cancelled."""
    pool = ThreadPoolExecutor(threads_for(tasks))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def threads_for(tasks: int) -> int:
    """How many threads some tasks use: at most the CPUs that the process may keep busy."""
    return max(1, min(tasks, busy_cpus()))
