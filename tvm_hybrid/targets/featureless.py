"""A warning for targets that name no CPU: code for them uses no vectors of ours."""

from __future__ import annotations

import functools
import warnings

from tvm.target import Target, codegen

from microkernels.isa import isa_named

_NO_CPU = ("", "generic", "x86-64")


def warn_if_featureless(target: Target) -> None:
    """Warns of a target that names neither a CPU nor the features of AVX2, once for each.

    Parameters
    ----------
    target : tvm.target.Target
        One that `resolve_target` has taken.
    """
    if str(target.attrs.get("mcpu", "")) in _NO_CPU:
        features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
        if not features.issuperset(isa_named("avx2").features):
            _warn(str(target))


@functools.cache
def _warn(target: str) -> None:
    # The caller's program is what has to change, so this is no line of a log.
    warnings.warn(
        f"the target {target} names no CPU, so kernels are scalar code, many times slower than "
        "vectors; for this machine use tvm_hybrid.resolve_target(None), for another one "
        'tvm_hybrid.resolve_target("spr") or {"kind": "llvm", "mcpu": "sapphirerapids"}',
        RuntimeWarning,
        stacklevel=4,
    )
