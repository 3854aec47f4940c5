"""Instruction set levels: which exist, which a target or this CPU has, which may be used.

The levels are ordered, and a CPU gets the highest one whose features it has. A level usually has
everything below it, but not always: AVX-512 CPUs may lack the 256-bit AVX-VNNI of `avx2_vnni`. So
ask `includes`. `TVM_HYBRID_ISA=<name>` caps the level that is chosen: for tests, and to find which
instruction set a problem comes from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from tvm.target import Target, codegen

from .amx.permission import ALL_AMX_FEATURES, AMX_FEATURES, AMX_FP16, tile_permission
from .base.errors import IsaError, TargetError
from .base.host_cpu import cpu_features

CAP_VARIABLE = "TVM_HYBRID_ISA"

# Beginnings of names of CPUs for which LLVM schedules once more after register allocation, and
# breaks dependencies by renaming registers. It renames tiles too, whose shapes belong to numbers.
_RENAMES_TILES = (
    *("znver", "bdver", "btver2", "nocona"),
    *("atom", "bonnell", "silvermont", "slm", "goldmont", "tremont"),
)


@dataclass(frozen=True)
class Isa:
    """One instruction set level.

    Attributes
    ----------
    name : str
        The name used in kernel names, records and `TVM_HYBRID_ISA`.
    features : tuple of str
        LLVM feature names that kernels of this level use. LLVM may use more features of a target;
        see `tvm_hybrid.targets.cpu_features.required_features`.
    vector_bits : int
        Width of the registers that f32 code uses; 32 means scalar code.
    cpu : str
        LLVM's name of the plainest CPU of this level.
    """

    name: str
    features: tuple[str, ...]
    vector_bits: int
    cpu: str

    @property
    def f32_lanes(self) -> int:
        """Number of f32 values in one register."""
        return self.vector_bits // 32

    @property
    def vector_level(self) -> str:
        """The widest vectors of f32: "scalar", "avx2" or "avx512"."""
        return {1: "scalar", 8: "avx2", 16: "avx512"}[self.f32_lanes]

    @property
    def multiplies_bf16(self) -> bool:
        """Whether it has instructions for products of bfloat16."""
        return "avx512bf16" in self.features

    @property
    def multiplies_bytes(self) -> bool:
        """Whether it has instructions for products of integers of 8 bits (VNNI or AMX)."""
        return bool({"avx512vnni", "avxvnni"} & {*self.features})

    @property
    def level(self) -> int:
        """Position in LADDER, which orders levels by preference; 0 is scalar."""
        return LADDER.index(self)

    def includes(self, other: Isa) -> bool:
        """Whether code for `other` runs on every CPU of this level."""
        return set(other.features).issubset(self.features)


# No kernel converts float16 itself. If a target has f16c, LLVM uses it and guards require it;
# otherwise LLVM calls functions of the runtime.
_AVX2 = ("avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
_VNNI = (*_AVX512, "avx512vnni")
_BF16 = (*_VNNI, "avx512bf16")

LADDER: tuple[Isa, ...] = (
    Isa("scalar", (), 32, "x86-64"),
    Isa("avx2", _AVX2, 256, "haswell"),
    Isa("avx2_vnni", (*_AVX2, "avxvnni"), 256, "alderlake"),
    Isa("avx512", _AVX512, 512, "skylake-avx512"),
    Isa("avx512_vnni", _VNNI, 512, "cascadelake"),
    Isa("avx512_bf16", _BF16, 512, "cooperlake"),
    Isa("amx", (*_BF16, *AMX_FEATURES), 512, "sapphirerapids"),
    Isa("amx_fp16", (*_BF16, *AMX_FEATURES, AMX_FP16), 512, "graniterapids"),
)


def isa_named(name: str) -> Isa:
    """The level called `name`.

    Raises
    ------
    IsaError
        If there is no such level.
    """
    for isa in LADDER:
        if isa.name == name:
            return isa
    known = ", ".join(isa.name for isa in LADDER)
    raise IsaError(f"unknown ISA {name!r}; the known ones are {known}")


def _highest(present: frozenset[str]) -> Isa:
    """The highest level whose features are all present."""
    return next(isa for isa in reversed(LADDER) if present.issuperset(isa.features))


def _under_cap(features: Iterable[str]) -> frozenset[str]:
    """The features that `TVM_HYBRID_ISA` allows."""
    cap = os.environ.get(CAP_VARIABLE)
    return frozenset(features).intersection(isa_named(cap).features if cap else features)


def host_features() -> frozenset[str]:
    """LLVM feature names of the CPU that this process runs on and may use.

    AMX features are included only if Linux lets this process use tiles, or if they are emulated.
    """
    permission = tile_permission()
    if permission.state == "emulated":
        return cpu_features().union(ALL_AMX_FEATURES)
    if permission.usable:
        return cpu_features()
    return frozenset(name for name in cpu_features() if not name.startswith("amx-"))


def host_isa() -> Isa:
    """The highest level that this CPU has and `TVM_HYBRID_ISA` allows; emulation does not count."""
    return _highest(_under_cap(host_features().difference(_emulated_features())))


def allowed_on_host(isa: Isa) -> bool:
    """Whether this process can run code of a level and `TVM_HYBRID_ISA` allows it."""
    return _under_cap(host_features()).issuperset(isa.features)


def emulated_on_host(isa: Isa) -> bool:
    """Whether a level's code runs here only because an emulator executes some instructions."""
    return not _emulated_features().isdisjoint(isa.features)


def _emulated_features() -> frozenset[str]:
    return frozenset(ALL_AMX_FEATURES if tile_permission().state == "emulated" else ())


def target_isa(target: Target) -> Isa:
    """The highest level that a target has and `TVM_HYBRID_ISA` allows.

    Parameters
    ----------
    target : tvm.target.Target
        An llvm target; its `mcpu` and `mattr` name the features. AMX is ignored for CPUs such as
        znver4, which have no AMX and for which LLVM's tuning breaks tile code.

    Raises
    ------
    TargetError
        If the target is not an llvm target for x86-64.
    """
    if target.kind.name != "llvm":
        raise TargetError(
            f"target kind {target.kind.name!r} is not supported; use an llvm target for x86-64, "
            'such as {"kind": "llvm", "mcpu": "skylake-avx512"}'
        )
    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    if str(target.attrs.get("mcpu", "")).startswith(_RENAMES_TILES):
        features.difference_update(ALL_AMX_FEATURES)
    return _highest(_under_cap(features))


def require_on_host(isa: Isa) -> None:
    """Refuses code that this CPU cannot run, or that Linux does not let this process run.

    Raises
    ------
    IsaError
        If features are missing; the message names them, or says why AMX tiles are denied.
    """
    present = host_features()
    missing = [name for name in isa.features if name not in present]
    if not missing:
        return
    advice = f"compile for {_highest(present).name} or lower, or set {CAP_VARIABLE}"
    permission = tile_permission()
    if permission.state == "denied" and set(missing) <= set(ALL_AMX_FEATURES):
        raise IsaError(
            f"this process cannot run {isa.name} code: {permission.reason}; have it granted, or "
            f"{advice}"
        )
    raise IsaError(f"this CPU cannot run {isa.name} code: it lacks {', '.join(missing)}; {advice}")
