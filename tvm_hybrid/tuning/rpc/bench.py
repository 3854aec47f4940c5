"""Measuring candidates of a region at a server: built and checked here, checked and timed there.

A candidate first runs here, if this CPU can run its code: one that crashes or is wrong then costs
no server anything. A session at a server, which is a process of its own there, is for one
candidate, so that nothing is left of it for the next one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from microkernels.isa import allowed_on_host
from tir_schedules.core.config import Config
from tir_schedules.core.template import Template

from ...runtime.threads import use_threads
from ..measuring.candidate import MOST_COPIES, Sampled, never_right
from ..measuring.case import Case, PreparedCase
from ..measuring.measure import Measurement, Report, measured
from ..measuring.sampling import Effort, sample_in_turns
from .driver import KERNELS, Linker


@dataclass(frozen=True)
class Library:
    """A candidate, perhaps with its baseline, ready to be sent.

    Attributes
    ----------
    path : Path
        The shared library.
    constants : list of dict
        For each kernel the arrays that it reads as constants, by the number of the argument.
    """

    path: Path
    constants: list[dict[int, np.ndarray]]


class RemoteKernel(Sampled):
    """One of the kernels of a library at a server."""

    def __init__(self, module: Any, number: int, serial: bool) -> None:
        self._seconds, self._number, self._serial = module["seconds"], number, int(serial)

    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        del clock  # it is the server's that counts
        return float(self._seconds(self._number, calls, self._serial))


class RemoteBench(PreparedCase):
    """Measures candidates of one region at servers, one after the other.

    Parameters
    ----------
    case, template
        See `PreparedCase`.
    linker : Linker
        Where files go.
    """

    def __init__(self, case: Case, template: Template[Any], linker: Linker) -> None:
        super().__init__(case, template)
        self.linker = linker
        self._baseline: tuple[Config, Path, dict[int, np.ndarray]] | None = None

    def build(self, config: Config, baseline: Config | None) -> Library:
        """Compiles a candidate, and a baseline that is not that of the last call."""
        kernels = [self._written(config, KERNELS[0])]
        if baseline is not None:
            if self._baseline is None or self._baseline[0] != baseline:
                self._baseline = (baseline, *self._written(baseline, KERNELS[1]))
            kernels.append(self._baseline[1:])
        path = self.linker.link([path for path, _ in kernels], self.isa)
        return Library(path, [constants for _, constants in kernels])

    def _written(self, config: Config, name: str) -> tuple[Path, dict[int, np.ndarray]]:
        code, constants = self.compile(config, name)
        return self.linker.write(code.mod, name), constants

    def try_here(self, library: Library) -> str | None:
        """Runs a candidate once on this machine, if it can; what is wrong with its result."""
        import tvm

        if not allowed_on_host(self.isa):
            return None
        use_threads(self.threads)
        module = tvm.runtime.load_module(str(library.path))
        row, output = self._row(library.constants[0], tvm.cpu())
        module[KERNELS[0]](*row)
        return self.expected.difference(output.numpy())

    def measure(
        self, session: Any, port: int, library: Library, effort: Effort, report: Report
    ) -> Measurement:
        """Checks and times a candidate at a server.

        Parameters
        ----------
        session : tvm.rpc.RPCSession
            A new session there.
        port : int
            The server's.
        library : Library
            What `build` made.
        effort : Effort
            How long.
        report : callable
            Told the name of every stage before it begins.
        """
        session.upload(str(library.path))
        module = session.load_module(library.path.name)
        module["guard"](port)
        device, serial = session.cpu(), self.threads == 1
        row, output = self._row(library.constants[0], device)
        report("check")
        module[KERNELS[0]](*row)
        wrong = self.expected.difference(output.numpy())
        if wrong is not None:
            return Measurement(status="wrong_result", error=wrong)
        report("measure")
        kernels, kept = [], []
        for number, constants in enumerate(library.constants):
            rows = self._rows(row, constants, device)
            module["bind"](number, len(rows), *(tensor for each in rows for tensor in each))
            kernels.append(RemoteKernel(module, number, serial))
            kept.append(rows)  # what is bound must live
        for kernel in reversed(kernels):
            kernel.warm_up(time.perf_counter)
        count = module["interruptions"]
        times, others = sample_in_turns(
            kernels[0],
            kernels[1] if len(kernels) > 1 else None,
            effort,
            time.perf_counter,  # for the end; kernels are timed where they run
            lambda: int(count(int(serial))),
        )
        return measured(times, others)

    def _row(self, constants: dict[int, np.ndarray], device: Any) -> tuple[list[Any], Any]:
        """A kernel's arguments on a device, and the last of them: its output."""
        import tvm

        arrays = [constants.get(i, array) for i, array in enumerate(self.arrays)]
        output = never_right(self.region, self.expected.value)
        row = [tvm.runtime.tensor(array, device) for array in (*arrays, output)]
        return row, row[-1]

    def _rows(
        self, row: Sequence[Any], constants: dict[int, np.ndarray], device: Any
    ) -> list[list[Any]]:
        """Rows of arguments that differ in the copies of their constants, made at the server."""
        import tvm

        size = sum(array.nbytes for array in constants.values())
        copies = max(1, min(MOST_COPIES, math.ceil(self.footprint_bytes / size))) if size else 1
        originals = {i: tvm.runtime.tensor(array, device) for i, array in constants.items()}
        rows = []
        for copy in range(copies):
            other = list(row)
            for i, original in originals.items():
                other[i] = original
                if copy:
                    other[i] = tvm.runtime.empty(original.shape, original.dtype, device)
                    original.copyto(other[i])
            rows.append(other)
        return rows
