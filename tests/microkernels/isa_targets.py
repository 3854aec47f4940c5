"""The CPU for which tests compile each microkernel, to read its code and to run it."""

from __future__ import annotations

import pytest
from tvm.target import Target

from microkernels.isa import LADDER, isa_named
from microkernels.microkernel import Microkernel

MCPU = {isa.name: isa.cpu for isa in LADDER}
# Features that no ISA needs and that CPUs with emulated AMX lack: LLVM would use them.
_WITHOUT = {isa: ["-avx512fp16", "-avxvnni"] for isa in ("amx", "amx_fp16")}


def target_of(isa: str, mcpu: str | None = None) -> Target:
    """The target for an instruction set's code; by default the plainest CPU that has it."""
    attributes = {"mattr": _WITHOUT[isa]} if isa in _WITHOUT else {}
    return Target({"kind": "llvm", "mcpu": mcpu or MCPU[isa], **attributes})


def with_amx(mcpu: str) -> Target:
    """A CPU with every feature of the instruction set "amx", also those that it lacks."""
    features = [f"+{feature}" for feature in isa_named("amx").features]
    return Target({"kind": "llvm", "mcpu": mcpu, "mattr": features})


# The CPUs that have AMX; and CPUs for which LLVM tunes, with AMX added.
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
    """One parameter for every kernel, on any CPU."""
    return [pytest.param(kernel, id=kernel.name) for kernel in kernels]
