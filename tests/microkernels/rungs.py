"""Which CPU each microkernel is compiled for in tests, to read its code and to run it."""

from __future__ import annotations

import pytest

from microkernels.isa import allowed_on_host
from microkernels.microkernel import Microkernel

# The plainest CPU of every rung that has kernels.
MCPU = {
    "scalar": "x86-64",
    "avx2": "haswell",
    "avx2_vnni": "alderlake",
    "avx512": "skylake-avx512",
    "avx512_vnni": "cascadelake",
    "avx512_bf16": "cooperlake",
}


def running_rung(kernel: Microkernel) -> str:
    """The rung that a kernel's numbers are computed on here.

    AVX-512 VNNI has the 256-bit instruction of AVX-VNNI as well, in another encoding.
    """
    if kernel.isa_name == "avx2_vnni" and not allowed_on_host(kernel.isa):
        return "avx512_vnni"
    return kernel.isa_name


def runnable(kernels: list[Microkernel]) -> list:
    """One parameter for every kernel, marked with the rung that it needs."""
    return [
        pytest.param(kernel, id=kernel.name, marks=pytest.mark.isa(running_rung(kernel)))
        for kernel in kernels
    ]


def named(kernels: list[Microkernel]) -> list:
    """One parameter for every kernel, whatever this CPU has."""
    return [pytest.param(kernel, id=kernel.name) for kernel in kernels]
