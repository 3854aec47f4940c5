"""The CPU features that generated code may use, and how to tell whether a CPU has them.

Each feature has a test by /proc/cpuinfo, for checks in Python, and a test by `cpuid`, for the check
inside an exported library (`library_loader.py`). LLVM may use every feature of a target in any
code, except AMX: only our kernels use AMX, and Linux must permit it.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

from tvm.target import Target, codegen

from microkernels.amx.permission import ADVICE, ALL_AMX_FEATURES, AMX_FP16, tile_permission
from microkernels.base.errors import IsaError
from microkernels.base.host_cpu import host_flags
from microkernels.isa import isa_named, target_isa

_SSE = 0
_AVX = 0x6  # XCR0: the operating system saves SSE and AVX state
_AVX512 = 0xE6
AMX_STATE = 0x60000


@dataclass(frozen=True)
class CpuFeature:
    """One CPU feature and how to detect it.

    Attributes
    ----------
    name : str
        LLVM's name.
    flag : str
        The name in /proc/cpuinfo.
    leaf, subleaf : int
        Input of the `cpuid` instruction.
    register : str
        "eax", "ebx", "ecx" or "edx": the register of cpuid's answer.
    bit : int
        The bit in that register.
    state : int
        Bits of XCR0 that the operating system must have set.
    """

    name: str
    flag: str
    leaf: int
    subleaf: int
    register: str
    bit: int
    state: int = _SSE

    @property
    def is_amx(self) -> bool:
        """Whether the process needs Linux's permission for the feature."""
        return self.state == AMX_STATE


# Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E.
FEATURES: dict[str, CpuFeature] = {
    feature.name: feature
    for feature in (
        CpuFeature("sse3", "pni", 1, 0, "ecx", 0),
        CpuFeature("ssse3", "ssse3", 1, 0, "ecx", 9),
        CpuFeature("sse4.1", "sse4_1", 1, 0, "ecx", 19),
        CpuFeature("sse4.2", "sse4_2", 1, 0, "ecx", 20),
        CpuFeature("movbe", "movbe", 1, 0, "ecx", 22),
        CpuFeature("popcnt", "popcnt", 1, 0, "ecx", 23),
        CpuFeature("lzcnt", "abm", 0x80000001, 0, "ecx", 5),
        CpuFeature("sse4a", "sse4a", 0x80000001, 0, "ecx", 6),
        CpuFeature("bmi", "bmi1", 7, 0, "ebx", 3),
        CpuFeature("bmi2", "bmi2", 7, 0, "ebx", 8),
        CpuFeature("adx", "adx", 7, 0, "ebx", 19),
        CpuFeature("gfni", "gfni", 7, 0, "ecx", 8),
        CpuFeature("avx", "avx", 1, 0, "ecx", 28, _AVX),
        CpuFeature("fma", "fma", 1, 0, "ecx", 12, _AVX),
        CpuFeature("f16c", "f16c", 1, 0, "ecx", 29, _AVX),
        CpuFeature("avx2", "avx2", 7, 0, "ebx", 5, _AVX),
        CpuFeature("avxvnni", "avx_vnni", 7, 1, "eax", 4, _AVX),
        CpuFeature("avx512f", "avx512f", 7, 0, "ebx", 16, _AVX512),
        CpuFeature("avx512dq", "avx512dq", 7, 0, "ebx", 17, _AVX512),
        CpuFeature("avx512ifma", "avx512ifma", 7, 0, "ebx", 21, _AVX512),
        CpuFeature("avx512cd", "avx512cd", 7, 0, "ebx", 28, _AVX512),
        CpuFeature("avx512bw", "avx512bw", 7, 0, "ebx", 30, _AVX512),
        CpuFeature("avx512vl", "avx512vl", 7, 0, "ebx", 31, _AVX512),
        CpuFeature("avx512vbmi", "avx512vbmi", 7, 0, "ecx", 1, _AVX512),
        CpuFeature("avx512vbmi2", "avx512_vbmi2", 7, 0, "ecx", 6, _AVX512),
        CpuFeature("avx512vnni", "avx512_vnni", 7, 0, "ecx", 11, _AVX512),
        CpuFeature("avx512bitalg", "avx512_bitalg", 7, 0, "ecx", 12, _AVX512),
        CpuFeature("avx512vpopcntdq", "avx512_vpopcntdq", 7, 0, "ecx", 14, _AVX512),
        CpuFeature("avx512fp16", "avx512_fp16", 7, 0, "edx", 23, _AVX512),
        CpuFeature("avx512bf16", "avx512_bf16", 7, 1, "eax", 5, _AVX512),
        CpuFeature("amx-tile", "amx_tile", 7, 0, "edx", 24, AMX_STATE),
        CpuFeature("amx-int8", "amx_int8", 7, 0, "edx", 25, AMX_STATE),
        CpuFeature("amx-bf16", "amx_bf16", 7, 0, "edx", 22, AMX_STATE),
        CpuFeature("amx-fp16", "amx_fp16", 7, 1, "eax", 21, AMX_STATE),
    )
}


def required_features(target: Target, tiles: bool = True, half: bool = True) -> tuple[str, ...]:
    """The CPU features that code for a target needs.

    Parameters
    ----------
    target : tvm.target.Target
        The target.
    tiles : bool
        Whether a kernel uses AMX, if the target has AMX; LLVM never uses it by itself.
    half : bool
        Whether a kernel multiplies float16 on AMX tiles, if the target can.
    """
    present = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    used = set(target_isa(target).features if tiles else ())
    used_by_kernels = used if half else used - {AMX_FP16}
    return tuple(
        name
        for name, feature in FEATURES.items()
        if name in present and (not feature.is_amx or name in used_by_kernels)
    )


def missing_on_host(names: tuple[str, ...]) -> list[str]:
    """The features that this process cannot use; an unknown feature counts as missing.

    AMX features are missing if Linux denies tiles, and present if tiles are emulated.
    """
    permission = tile_permission()

    def present(name: str) -> bool:
        feature = FEATURES.get(name)
        if feature is None:
            return False
        if feature.is_amx and permission.state == "emulated":
            return name in ALL_AMX_FEATURES
        return feature.flag in host_flags() and (permission.usable or not feature.is_amx)

    return [name for name in names if not present(name)]


def require_host(names: tuple[str, ...], what: str, cpu: str) -> None:
    """Refuses code that this CPU cannot run, or that Linux does not let this process run.

    Raises
    ------
    IsaError
        The message names `what` was compiled, for which `cpu`, and the missing features, or why
        AMX tiles are denied.
    """
    missing = missing_on_host(names)
    if not missing:
        return
    permission = tile_permission()
    if permission.state == "denied":
        missing = [name for name in missing if name not in FEATURES or not FEATURES[name].is_amx]
        if not missing:
            raise IsaError(
                f"{what} was compiled for {cpu} and needs AMX tiles; {permission.reason}; {ADVICE}"
            )
    raise IsaError(
        f"{what} was compiled for {cpu} and needs {', '.join(missing)}, which this CPU lacks; "
        "run it on such a CPU, or compile the model for this one"
    )


_NO_CPU = ("", "generic", "x86-64")


def warn_if_featureless(target: Target) -> None:
    """Warns about a target that names neither a CPU nor the features of AVX2, once per target.

    Parameters
    ----------
    target : tvm.target.Target
        A target that `resolve_target` returned.
    """
    if str(target.attrs.get("mcpu", "")) in _NO_CPU:
        features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
        if not features.issuperset(isa_named("avx2").features):
            _warn(str(target))


@functools.cache
def _warn(target: str) -> None:
    # A warning, not a log line, because the caller's program has to change.
    warnings.warn(
        f"the target {target} names no CPU, so kernels are scalar code, many times slower than "
        "vectors; for this machine use tvm_hybrid.resolve_target(None), for another one "
        'tvm_hybrid.resolve_target("spr") or {"kind": "llvm", "mcpu": "sapphirerapids"}',
        RuntimeWarning,
        stacklevel=4,
    )
