"""The fallback, an executable's second program: its target, and when it runs; and `MachineCode`.

A model compiled for a CPU with AMX may be run where Linux denies AMX tiles, or on an older CPU.
With a fallback it runs there too, by code for a lower instruction set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.target import Target, codegen

from microkernels.amx.permission import tile_permission
from microkernels.base.errors import IsaError, TargetError
from microkernels.base.logs import logger
from microkernels.base.memory import return_what_compiling_took
from microkernels.isa import LADDER, Isa, target_isa
from relay_passes.ir.entries import RELEASE_ENTRY
from relay_passes.ir.stages import announce_machine_code, emit_machine_code

from ..library.manifest import Manifest
from ..runtime.thread_pool.native import installed
from ..runtime.threads import require_runnable
from ..targets.cpu_features import missing_on_host, require_host
from ..targets.resolve import TargetLike, cpu_name, resolve_target


def fallback_target(target: Target, wanted: TargetLike) -> Target:
    """The target of the fallback.

    Parameters
    ----------
    target : tvm.target.Target
        The target of the first program.
    wanted : str, mapping or tvm.target.Target
        A target, as for `resolve_target`; or the name of an instruction set, such as "avx512_vnni":
        the first program's CPU without the features above it.

    Raises
    ------
    TargetError
        If there is no such target, or its instruction set is not below the first program's.
    """
    level = next((isa for isa in LADDER if isa.name == wanted), None)
    second = resolve_target(wanted) if level is None else _restricted(target, level)
    first_isa, second_isa = target_isa(target), target_isa(second)
    if second_isa.level >= first_isa.level:
        raise TargetError(
            f"the fallback, {cpu_name(second)} ({second_isa.name}), is not below the target, "
            f"{cpu_name(target)} ({first_isa.name}); name a lower instruction set, such as "
            "avx512_vnni, or an older CPU"
        )
    return second


def _restricted(target: Target, level: Isa) -> Target:
    present = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    known = dict.fromkeys(name for isa in LADDER for name in isa.features)
    above = [f"-{name}" for name in known if name in present and name not in level.features]
    config: dict[str, Any] = {"kind": target.kind.name, **target.attrs}
    config["mattr"] = [*map(str, config.get("mattr", ())), *above]
    return Target(config)


def description(manifest: Manifest) -> str:
    """A program's CPU and instruction set as text."""
    return f"{manifest.cpu} ({manifest.isa})"


def runs_here(manifest: Manifest) -> bool:
    """Whether this process can run a program."""
    return not missing_on_host(manifest.features)


def takes_fallback(manifest: Manifest) -> bool:
    """Whether the second program runs here and the first does not."""
    fallback = manifest.fallback
    return fallback is not None and not runs_here(manifest) and runs_here(fallback)


def require_program(manifest: Manifest, what: str) -> None:
    """Checks that the program or its fallback runs here.

    Raises
    ------
    IsaError
        The message names `what` does not run, and what is missing for each program.
    """
    if takes_fallback(manifest):
        return
    try:
        require_host(manifest.features, what, manifest.cpu)
    except IsaError as error:
        fallback = manifest.fallback
        if fallback is None:
            raise
        missing = ", ".join(missing_on_host(fallback.features))
        raise IsaError(
            f"{error}; its fallback for {description(fallback)} needs {missing}"
        ) from None


def report_fallback(manifest: Manifest, what: str) -> None:
    """Logs that the second program runs instead of the first, and why."""
    assert manifest.fallback is not None
    missing = missing_on_host(manifest.features)
    permission = tile_permission()
    lacking = f"this CPU lacks {', '.join(missing)}"
    logger.warning(
        "%s runs its fallback for %s instead of the code for %s: %s",
        what,
        description(manifest.fallback),
        description(manifest),
        permission.reason if permission.state == "denied" else lacking,
    )


# MachineCode: the machine code of a program, and the only way to its functions.
#
# TVM passes its thread pool to code only once: when it opens a library, or when it makes the code
# of LLVM modules. LLVM code is made at the first lookup of any function. So libraries are opened in
# `load` and functions looked up here only, after the pool of this process is installed.


class MachineCode:
    """The code of a program; no other class may look up functions in its module.

    Parameters
    ----------
    module : callable
        Returns the module that has `vm_load_executable`; for a library, `load` opened it. It is
        called once, at the first run: most programs in a cache never run.
    manifest : Manifest
        Describes the program.
    threads : int
        Number of threads of a run.
    library : Path or None
        The library that the code comes from; None if it was compiled here.
    """

    def __init__(
        self, module: Callable[[], Any], manifest: Manifest, threads: int, library: Path | None
    ) -> None:
        self._open = module
        self._module: Any = None
        self._manifest = manifest
        self._threads = threads
        self._library = library
        self._lock = threading.Lock()

    def make(self) -> None:
        """Makes the machine code, once; `function` and `machine` call this.

        Raises
        ------
        IsaError
            If the program was compiled for another CPU, and this one cannot run it.
        TargetError
            If it has too many threads for this machine.
        """
        what = str(self._library) if self._library else "this model"
        require_host(self._manifest.features, what, self._manifest.cpu)
        require_runnable(self._threads, what)
        if self._threads > 1:  # one thread needs no pool
            installed()
        with self._lock:
            if self._module is None:
                if self._library is None:
                    announce_machine_code()
                module = self._open()
                emit_machine_code(module)
                self._module = module
                if self._library is None:  # LLVM made the code, and used memory for it
                    return_what_compiling_took()

    def function(self, name: str) -> Any:
        """A kernel by name; raises as `make` does."""
        self.make()
        return self._module.get_function(name, query_imports=True)

    def machine(self) -> Any:
        """A new virtual machine over the code and the weights; raises as `make` does."""
        self.make()
        with self._lock:  # initialisation writes to the code that the machines share
            return relax.VirtualMachine(self._module, tvm.cpu())


def releasing(machine: Any, name: str) -> Any:
    """A function after which the machine no longer holds large results."""
    function = machine[name]
    if not machine.module.implements_function(RELEASE_ENTRY):
        return function
    release = machine[RELEASE_ENTRY]

    def run(*inputs: Any) -> Any:
        results = function(*inputs)
        release()
        return results

    return run
