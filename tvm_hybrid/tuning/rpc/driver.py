"""The library that a server runs: a candidate, its baseline, and a stopwatch for both.

A call over a network takes longer than most kernels, so the stopwatch is in the library. It calls a
kernel a number of times, each time with the next copy of its weights, and returns the seconds. It
is C, linked with the machine code of both kernels; a server needs only TVM's runtime.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm.support import cc
from tvm_ffi import libinfo

from microkernels.amx.permission import AMX_FEATURES
from microkernels.base.errors import CompileError
from microkernels.base.tvm_compat.relax import SYMBOL_PREFIX
from microkernels.isa import Isa

KERNELS = ("candidate", "baseline")
"""Names of the kernels in the library; the baseline may be missing."""

SOURCE = Path(__file__).with_name("stopwatch.c")


class Linker:
    """Links kernels with the stopwatch; writes into a temporary `folder`.

    Raises
    ------
    CompileError
        If there is no compiler.
    """

    def __init__(self, folder: Path) -> None:
        compiler = cc.get_cc()
        if compiler is None:
            raise CompileError(
                "measuring on other machines needs a C compiler here, and none is installed: "
                "install g++, or name one in the environment variable CXX"
            )
        self.folder, self._compiler = folder, shlex.split(compiler)
        self._count = 0
        self._library: Path | None = None
        self._stopwatches: dict[tuple[str, ...], Path] = {}

    def write(self, module: Any, name: str) -> Path:
        """Writes a compiled kernel as an object file."""
        path = self.folder / f"{name}.o"
        module.write_to_file(str(path), "o")
        return path

    def link(self, kernels: Sequence[Path], isa: Isa) -> Path:
        """Links the library of a candidate and, if there are two kernels, its baseline.

        Each library gets a new name, because a name that was loaded keeps its first content. The
        previous library is deleted.
        """
        if self._library is not None:
            self._library.unlink()
        self._count += 1
        self._library = library = self.folder / f"candidate{self._count}.so"
        tiles = not set(AMX_FEATURES).isdisjoint(isa.features)
        macros = (*(["-DPAIRED"] if len(kernels) > 1 else []), *(["-DTILES"] if tiles else []))
        if macros not in self._stopwatches:
            headers = (libinfo.find_include_path(), libinfo.find_dlpack_include_path())
            include = [part for header in headers for part in ("-I", header)]
            output = self.folder / f"stopwatch{len(self._stopwatches)}.o"
            symbol = f"-DSYMBOL(name)={SYMBOL_PREFIX}##name"
            options = ("-x", "c", "-std=gnu11", "-O1", "-fPIC", symbol, *macros, *include)
            self._run(*options, "-c", "-o", str(output), str(SOURCE))
            self._stopwatches[macros] = output
        parts = [self._stopwatches[macros], *kernels]
        self._run("-shared", "-pthread", "-o", str(library), *map(str, parts))
        return library

    def _run(self, *arguments: str) -> None:
        command = [*self._compiler, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CompileError(f"the compiler {command[0]!r} does not start: {error}") from None
        if done.returncode != 0:
            raise CompileError(
                f"linking failed with code {done.returncode}: {shlex.join(command)}\n{done.stderr}"
            )
