"""Hooks that measure compilation: slow functions of the project and of TVM."""

from __future__ import annotations

import cProfile
import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tvm import IRModule, ir, tirx

from relay_passes.ir.stages import Stage, listening

from .stage_clock import StageClock
from .start import FRONT_END, KEEPING, MACHINE_CODE, MEASURING, REST
from .starts import ROOT

STAGES = {
    "tvm_hybrid.api:import_model": FRONT_END,
    "tvm_hybrid.api:compile_module": REST,
    "tvm_hybrid.executable.machine_code:emit_machine_code": MACHINE_CODE,
    "tvm_hybrid.cache.program_cache:keep": KEEPING,
}
"""Functions whose calls are stages; `compile_module` announces further stages itself."""

TEMPLATES, CONFIGURATIONS = "templates", "configurations"
KERNEL_PASSES, CODE_GENERATION, EMISSION = "TVM's passes", "LLVM IR", "LLVM's emission"
PARTS = {
    "relay_passes.lower.lower_regions:emit_kernel": TEMPLATES,
    "relay_passes.lower.lower_regions:choose": CONFIGURATIONS,
    "tvm.tirx:build": KERNEL_PASSES,
    "tvm.tirx.build:codegen_build": CODE_GENERATION,
    "microkernels.base.tvm_compat.relax:emit_machine_code": EMISSION,
    "tvm_hybrid.library.export:_object_code": EMISSION,
}
"""Functions whose calls are parts of stages. A build of kernels without its generation of code is
the part of TVM's passes."""

EVALUATION = re.compile(r"cycles|cost|estimate")
"""Names of functions of templates that estimate the cost of a configuration or a form."""
_PASSES = Path(ir.transform.__file__)


def install(clock: StageClock) -> None:
    """Starts measuring every function of the tables, and counting what is compiled."""
    for table, kind in ((STAGES, "stage"), (PARTS, "part")):
        for place, title in table.items():
            name, attribute = place.split(":")
            importlib.import_module(name)
            module = sys.modules[name]  # the attribute tvm.tirx.build is a function
            timed = clock.timed(getattr(module, attribute), **{kind: title})
            setattr(module, attribute, timed)
    importlib.import_module("tvm_hybrid.frontend")  # imported now, before a session does so
    compiling: Any = importlib.import_module("relay_passes.lower_module")
    native = compiling.compile_native

    def compile_native(mod: IRModule, *rest: Any) -> Any:
        kernels = sum(isinstance(each, tirx.PrimFunc) for _, each in mod.functions_items())
        clock.counts["kernels"] += kernels
        found = native(mod, *rest)
        with clock.stage(MEASURING):
            clock.counts["lines"] += lines_of(found[0].mod)
        return found

    compiling.compile_native = compile_native


def lines_of(executable: Any) -> int:
    """Lines of LLVM IR in the modules that an executable imports."""
    modules = [each for each in executable.imports if each.kind == "llvm"]
    return sum(str(each.inspect_source("ll")).count("\n") for each in modules)


@contextmanager
def announced(clock: StageClock) -> Iterator[None]:
    """While the context is open, phases of this thread's compilations are stages."""

    def begin(stage: Stage) -> None:
        clock.begin(stage.title)

    with listening(begin):
        yield


class Entries(cProfile.Profile):
    """Counts how often functions are entered in this thread, which slows them down."""

    def __init__(self) -> None:
        super().__init__(subcalls=False, builtins=False)

    def counts(self) -> Counter[str]:
        """Evaluations of costs, calls of TVM's passes, and visits.

        Visits are entries of functions of passes and of the front end.
        """
        found: Counter[str] = Counter(evaluations=0, visits=0, passes=0)
        for function, count in self.by_function().items():
            found[function.kind] += count
        return found

    def by_function(self) -> Counter[Function]:
        """How often each counted function was entered."""
        found: Counter[Function] = Counter()
        for entry in self.getstats():
            code = entry.code
            if not isinstance(code, str) and (kind := _kind(Path(code.co_filename), code.co_name)):
                place = f"{code.co_filename}:{code.co_firstlineno}"
                found[Function(kind, place, code.co_name)] += entry.callcount
        return found


class Function(NamedTuple):
    """A counted function: the kind that it counts as, its place and name."""

    kind: str
    place: str
    name: str


def _kind(path: Path, name: str) -> str:
    """The kind that entries of a function count as; "" if they do not count."""
    if path == _PASSES and name == "__call__":
        return "passes"
    if not path.is_relative_to(ROOT):
        return ""
    package = path.relative_to(ROOT).parts[0]
    if package == "tir_schedules" and EVALUATION.search(name):
        return "evaluations"
    front_end = package == "tvm_hybrid" and "frontend" in path.parts
    return "visits" if package == "relay_passes" or front_end else ""
