"""MachineCode: the machine code of a program, and the only way to its functions.

TVM tells code which pool of threads runs its parallel loops once: when it opens a library, or makes
the code of LLVM modules. The latter it does when somebody looks for a function, whoever that is. So
both happen here alone, where the pool of this process is installed first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from microkernels.base.memory import return_what_compiling_took
from microkernels.base.tvm_compat.runtime import open_library
from relay_passes.ir.stages import announce_machine_code
from relay_passes.ir.workers import emit_machine_code

from ..library.manifest import Manifest
from ..runtime.thread_pool.native import installed
from ..runtime.threads import require_runnable
from ..targets.cpu_features import require_host


def open_code(name: str, threads: int) -> Any:
    """The module of a library whose program has so many threads; one thread needs no pool."""
    _install_pool(threads)
    return open_library(name)


class MachineCode:
    """The code of a program. Nobody else may ask the module for a function.

    Parameters
    ----------
    module : callable
        Returns the module that has `vm_load_executable`; one of a library comes from `open_code`.
        It is called once, when somebody wants to run: most programs of a cache never do.
    manifest : Manifest
        What the program is.
    threads : int
        Of a run.
    library : Path or None
        The library it comes from; None if it was compiled here.
    """

    def __init__(
        self,
        module: Callable[[], Any],
        manifest: Manifest,
        threads: int,
        library: Path | None = None,
    ) -> None:
        self._open = module
        self._module: Any = None
        self._manifest = manifest
        self._threads = threads
        self._library = library
        self._lock = threading.Lock()

    def make(self) -> None:
        """Makes the machine code, once; `function` and `machine` do it otherwise.

        Raises
        ------
        IsaError
            If it was compiled for a CPU that this one is not.
        TargetError
            If it has more threads than make sense here.
        """
        what = str(self._library) if self._library else "this model"
        require_host(self._manifest.features, what, self._manifest.cpu)
        require_runnable(self._threads, what)
        _install_pool(self._threads)
        with self._lock:
            if self._module is None:
                if self._library is None:
                    announce_machine_code()
                module = self._open()
                emit_machine_code(module)
                self._module = module
                if self._library is None:  # LLVM has been at work
                    return_what_compiling_took()

    def function(self, name: str) -> Any:
        """A kernel; errors as of `make`."""
        self.make()
        return self._module.get_function(name, query_imports=True)

    def machine(self) -> Any:
        """A fresh virtual machine over the code and the weights; errors as of `make`."""
        self.make()
        with self._lock:  # initialisation writes to the code that the machines share
            return relax.VirtualMachine(self._module, tvm.cpu())


def _install_pool(threads: int) -> None:
    if threads > 1:
        installed()
