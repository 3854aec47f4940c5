"""Machine code for targets with features that this CPU lacks, made of stand-ins.

    with stand_ins():
        kernel = tvm.compile(function, target={"kind": "llvm", "mcpu": "cooperlake"})["kernel"]

A target is compiled unchanged if this CPU has all its features. AMX instructions stay as they are:
`tests/amx_emulator` executes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.target import Target, codegen

from tvm_hybrid.targets.cpu_features import FEATURES, missing_on_host

from .rewriting import with_meanings

_CODE_GENERATOR = "target.build.llvm"
_generate = tvm.get_global_func(_CODE_GENERATOR)

# This CPU's features, whatever a test pretends. Read once, before AMX is emulated.
PRESENT = frozenset(FEATURES).difference(missing_on_host(tuple(FEATURES)))


def lacks(target: Target) -> list[str]:
    """Features, except AMX, that code for a target may use and this CPU lacks."""
    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    return [
        name
        for name, feature in FEATURES.items()
        if name in features and name not in PRESENT and not feature.is_amx
    ]


def target_here(target: Target) -> Target:
    """A target with the features of another one that this CPU has, and with all AMX features."""
    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    missing = lacks(target)
    kept = [f"+{name}" for name in FEATURES if name in features and name not in missing]
    described = json.loads(str(target))
    described.pop("tag", None)
    # The plainest CPU: LLVM renames no tiles for it, and adds no features.
    return Target({**described, "mcpu": "x86-64", "mattr": kept})


def stand_ins() -> AbstractContextManager[None]:
    """Within, code for targets with features that this CPU lacks uses stand-ins."""

    def generate(mod: IRModule, target: Target) -> Any:
        if not lacks(target):
            return _generate(mod, target)
        here = target_here(target)
        return _generate(with_meanings(mod, here, PRESENT), here)

    return _generated_by(generate)


def unchecked() -> AbstractContextManager[None]:
    """Within, kernels do not check their arguments: the checks take longer than the kernels."""
    before = tvm.get_global_func(_CODE_GENERATOR)

    def generate(mod: IRModule, target: Target) -> Any:
        return before(tirx.transform.SkipAssert()(mod), target)

    return _generated_by(generate)


@contextmanager
def _generated_by(generate: Callable[[IRModule, Target], Any]) -> Iterator[None]:
    before = tvm.get_global_func(_CODE_GENERATOR)
    tvm_ffi.register_global_func(_CODE_GENERATOR, generate, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_CODE_GENERATOR, before, override=True)
