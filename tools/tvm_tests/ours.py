"""Puts our pipeline in the place of TVM's default one, for CPUs."""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm.target import Target

from relay_passes.decisions import DecisionLog
from tvm_hybrid import resolve_target
from tvm_hybrid.byoc import build_pipeline

from .builds import Builds

DEFAULTS = ("default", "default_build")
"""Names of pipelines that ours stands for; a pipeline of a test's own stays."""


def replace_default_pipeline(builds: Builds) -> None:
    """From now on, `tvm.relax.build` means ours; `tvm.compile` calls it for Relax modules."""
    stock = tvm.relax.build

    @functools.wraps(stock)
    def build(mod: Any, target: Any = None, *args: Any, **options: Any) -> Any:
        named = ("params", "relax_pipeline", "tir_pipeline", "exec_mode")
        options |= dict(zip(named, args, strict=False))
        asked = options.get("relax_pipeline", "default")
        if asked not in DEFAULTS or not _is_cpu(target):
            return stock(mod, target, **options)
        decisions: DecisionLog = []
        # TVM looks for the check of the CPU in vain in this mode.
        check_cpu = options.get("exec_mode", "bytecode") != "compiled"
        options["relax_pipeline"] = build_pipeline(check_cpu=check_cpu, decisions=decisions)
        executable = stock(mod, _with_features(target), **options)
        builds.modules += 1
        builds.regions += sum(each.taken for each in decisions)
        return executable

    for owner in (tvm.relax, tvm.relax.vm_build):
        owner.build = build


def _is_cpu(target: Any) -> bool:
    named = Target.current(True) if target is None else Target(target)
    return named is None or named.kind.name == "llvm"


def _with_features(target: Any) -> Any:
    """The target, this machine's if it names no CPU: its kernels are those that users run."""
    if target is None:
        return None
    target = Target(target)
    return target if target.attrs.get("mcpu") or target.attrs.get("mattr") else resolve_target(None)
