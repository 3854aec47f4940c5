"""The table of contents of the compiler: every pass, in the order in which they run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.target import Target

from tir_schedules.config import Config
from tir_schedules.machine import Machine
from tir_schedules.region import Region

from .decisions import DecisionLog

logger = logging.getLogger("tvm_hybrid")

Lookup = Callable[[Region, Machine], "tuple[Config, str] | None"]


@dataclass(frozen=True)
class PipelineOptions:
    """What the passes need to know.

    Attributes
    ----------
    target : tvm.target.Target
        An llvm target.
    threads : int
        Threads that one parallel region may use; 1 builds serial kernels.
    lookup : callable or None
        (region, machine) -> (config, where it comes from), or None where no record fits.
    strict : bool
        Whether an operator that no template takes is an error.
    dump_ir : Path or None
        Folder that receives the IR after every pass.
    """

    target: Target
    threads: int = 1
    lookup: Lookup | None = None
    strict: bool = False
    dump_ir: Path | None = None

    @property
    def machine(self) -> Machine:
        """The machine that kernels are built for."""
        return Machine.from_target(self.target, self.threads)


@dataclass(frozen=True)
class CompiledModule:
    """A compiled module with its lowered IR and what was decided on the way."""

    executable: Any
    mod: IRModule
    decisions: DecisionLog = field(default_factory=list)


def compile_module(mod: IRModule, options: PipelineOptions) -> CompiledModule:
    """Runs every phase on a Relax module and compiles the result."""
    decisions: DecisionLog = []
    lowered = relax.transform.LegalizeOps()(mod)
    executable = tvm.compile(lowered, target=options.target)
    return CompiledModule(executable, lowered, decisions)
