"""Puts our pipeline in the place of TVM's default one, for CPUs."""

from __future__ import annotations

import functools
import inspect
import sys
from pathlib import Path
from typing import Any

from tvm import relax
from tvm.ir.transform import Pass, Sequential
from tvm.relax import vm_build
from tvm.target import Target

from relay_passes.ir.decisions import DecisionLog
from tvm_hybrid import resolve_target
from tvm_hybrid.tvm_routes.byoc import build_pipeline

from .runs import Builds

DEFAULTS = ("default", "default_build")
"""Names of pipelines that ours replaces; a test's own pipeline stays."""

LEGALISING = ("test_frontend_onnx.py",)
"""Files that legalise operators right before they compile, as TVM's pipeline does anyway."""


def replace_default_pipeline(builds: Builds) -> None:
    """Makes `tvm.relax.build` use our pipeline; `tvm.compile` calls it for Relax modules."""
    stock = vm_build.build
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def build(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        call = given.arguments
        if call["relax_pipeline"] not in DEFAULTS or not _is_for_cpu(call["target"]):
            return stock(*args, **options)
        decisions: DecisionLog = []
        # In this mode TVM does not find kernels and the check of the CPU in other modules.
        others = call["exec_mode"] != "compiled"
        call["relax_pipeline"] = build_pipeline(
            check_cpu=others, native=others, decisions=decisions
        )
        call["target"] = _with_features(call["target"])
        executable = stock(*given.args, **given.kwargs)
        builds.modules += 1
        builds.regions += sum(each.taken for each in decisions)
        return executable

    for owner in (relax, vm_build):
        owner.build = build  # type: ignore[attr-defined]


def leave_operators() -> None:
    """Makes `relax.transform.LegalizeOps()` in tests of `LEGALISING` do nothing.

    Otherwise our pipeline would get loops, and the tests would not test its operators.
    """
    stock = relax.transform.LegalizeOps

    @functools.wraps(stock)
    def legalize(*args: Any, **options: Any) -> Pass:
        caller = Path(sys._getframe(1).f_code.co_filename).name
        return Sequential([]) if caller in LEGALISING else stock(*args, **options)

    relax.transform.LegalizeOps = legalize


def _is_for_cpu(target: str | Target | None) -> bool:
    """Whether LLVM compiles for the target; without a target, TVM compiles for the host CPU."""
    named = Target.current(True) if target is None else Target(target)
    return named is None or str(named.kind.name) == "llvm"


def _with_features(target: str | Target | None) -> Target | None:
    """The target; this machine's if it names no CPU, because users' programs run such kernels."""
    if target is None:
        return None
    named = Target(target)
    return named if {"mcpu", "mattr"} & set(named.attrs) else resolve_target(None)
