"""Code of a rung to run here, whatever this CPU is: one kernel, or all that a test compiles."""

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
from tests.microkernels.rungs import target_of
from tvm_hybrid import api
from tvm_hybrid.cpu_features import required_features

from .building import lacks, stand_ins
from .rungs_run import can_run, note, note_skipped, substitute_of


def compiled(mod: IRModule | tirx.PrimFunc, rung: str) -> Any:
    """What `tvm.compile` makes of kernels for a rung, by stand-ins where this CPU lacks it."""
    with made_for(rung):
        return tvm.compile(mod, target=target_of(substitute_of(rung)))


@contextmanager
def made_for(rung: str) -> Iterator[None]:
    """Within, what is compiled for a rung's targets runs here; or the test is skipped."""
    if not can_run(rung):
        note_skipped(rung)
        pytest.skip(f"this CPU has no {rung}, and no stand-in runs its code")
    note(rung)
    with stand_ins():
        yield


@contextmanager
def pretending(rung: str) -> Iterator[None]:
    """Within, this process takes the CPU for one with a rung, and compiles by stand-ins.

    What is compiled says that it needs what stand-ins need: no more than this CPU has.
    """
    features = isa_module._cpu_features().union(isa_named(rung).features)

    def needed(target: tvm.target.Target, tiles: bool = True) -> tuple[str, ...]:
        missing = lacks(target)
        return tuple(name for name in required_features(target, tiles) if name not in missing)

    with (
        mock.patch.object(isa_module, "_cpu_features", lambda: features),
        mock.patch.object(api, "required_features", needed),
        stand_ins(),
    ):
        yield
