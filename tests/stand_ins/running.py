"""Runs code of any ISA on this CPU: one kernel, or all that a test compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import tvm
from tvm import IRModule, tirx

from microkernels import isa as isa_module
from microkernels.isa import isa_named
from relay_passes.lower.codegen import kernel_context
from relay_passes.lower.kernel_pipelines import THREADS, pipeline_for
from tests.amx_emulator import emulator
from tests.microkernels.isa_targets import target_of
from tvm_hybrid import api
from tvm_hybrid.targets.cpu_features import required_features
from tvm_hybrid.tvm_routes import tensorized

from .building import lacks, stand_ins, unchecked
from .isas_run import can_run, note, note_skipped, substitute_of


def compiled(mod: IRModule | tirx.PrimFunc, isa: str) -> Any:
    """Compiles kernels for an ISA, with stand-ins if this CPU lacks it.

    TVM's passes are those of production. The kernels do not check their arguments.
    """
    threads = int(mod.attrs.get(THREADS, 1)) if isinstance(mod, tirx.PrimFunc) else 1
    functions = [mod] if isinstance(mod, tirx.PrimFunc) else mod.functions.values()
    with made_for(isa), unchecked(), kernel_context(functions):
        target, pipeline = target_of(substitute_of(isa)), pipeline_for(threads)
        return tvm.compile(mod, target=target, tir_pipeline=pipeline)


@contextmanager
def made_for(isa: str) -> Iterator[None]:
    """Within, code compiled for an ISA's targets runs here; skips the test if that is impossible.

    If AMX is missing, it is emulated from then on.
    """
    if not can_run(isa):
        note_skipped(isa)
        pytest.skip(f"this CPU has no {isa}, and no stand-in runs its code")
    note(isa)
    if isa.startswith("amx"):
        emulator.install()
    with stand_ins():
        yield


@contextmanager
def pretending(isa: str) -> Iterator[None]:
    """Within, this process pretends that the CPU has an ISA, and compiles with stand-ins.

    Compiled libraries require only the features that the stand-ins require: those of this CPU.
    """
    features = isa_module.cpu_features().union(isa_named(isa).features)

    def needed(target: tvm.target.Target, *uses: bool) -> tuple[str, ...]:
        missing = lacks(target)
        return tuple(name for name in required_features(target, *uses) if name not in missing)

    with (
        mock.patch.object(isa_module, "cpu_features", lambda: features),
        mock.patch.object(api, "required_features", needed),
        mock.patch.object(tensorized, "required_features", needed),
        stand_ins(),
    ):
        yield
