"""Which CPU each microkernel is compiled for in tests, to read its code and to run it."""

from __future__ import annotations

import pytest
from tvm.target import Target

from microkernels.isa import LADDER, isa_named
from microkernels.microkernel import Microkernel

MCPU = {isa.name: isa.cpu for isa in LADDER}
# What no ISA asks for, and CPUs lack on which AMX is emulated: LLVM would use it where it can.
_WITHOUT = {isa: ["-avx512fp16", "-avxvnni"] for isa in ("amx", "amx_fp16")}


def target_of(isa: str, mcpu: str | None = None) -> Target:
    """The target of an instruction set's code; of its plainest CPU unless told otherwise."""
    attributes = {"mattr": _WITHOUT[isa]} if isa in _WITHOUT else {}
    return Target({"kind": "llvm", "mcpu": mcpu or MCPU[isa], **attributes})


def with_amx(mcpu: str) -> Target:
    """A CPU, and every feature of the instruction set "amx" whether it has it or not."""
    features = [f"+{feature}" for feature in isa_named("amx").features]
    return Target({"kind": "llvm", "mcpu": mcpu, "mattr": features})


# The CPUs that have AMX; and AMX as features beside what LLVM tunes for.
AMX_TARGETS = {
    cpu: Target({"kind": "llvm", "mcpu": cpu})
    for cpu in (
        "sapphirerapids",
        "emeraldrapids",
        "graniterapids",
        "graniterapids-d",
        "diamondrapids",
    )
} | {f"{cpu} and AMX": with_amx(cpu) for cpu in ("x86-64-v4", "icelake-server")}


def runnable(kernels: list[Microkernel]) -> list:
    """One parameter for every kernel, marked with the instruction set that it needs."""
    return [
        pytest.param(kernel, id=kernel.name, marks=pytest.mark.isa(kernel.isa_name))
        for kernel in kernels
    ]


def named(kernels: list[Microkernel]) -> list:
    """One parameter for every kernel, whatever this CPU has."""
    return [pytest.param(kernel, id=kernel.name) for kernel in kernels]
