"""The registry of microkernels: finds one by its name, or those for a target and two types."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable

from .base.errors import IsaError
from .isa import Isa, isa_named
from .microkernel import Microkernel
from .tile import MultiplyAdd

# The files in `kernels`, loaded at the first look-up.
FAMILIES = ("f32", "int8", "bf16", "amx_tiles")

_kernels: dict[str, Microkernel] = {}


def register_microkernel(kernel: Microkernel) -> Microkernel:
    """Adds a microkernel; its name must be new."""
    if kernel.name in _kernels:
        raise ValueError(f"microkernel {kernel.name!r} is registered twice")
    _kernels[kernel.name] = kernel
    return kernel


def register_microkernels(
    isa_name: str,
    types: tuple[str, str, str, str],
    kr: int,
    sizes: Iterable[tuple[int, int]],
    multiply_add: MultiplyAdd,
    llvm_ir: str = "",
) -> None:
    """Registers a microkernel for every (mr, nr).

    Parameters
    ----------
    types : tuple of str
        Name of the combination, such as "u8s8s32"; then the types of A, B and the accumulators.
    """
    isa = isa_named(isa_name)
    for mr, nr in sizes:
        names, tile = (f"{isa.name}_{types[0]}_{mr}x{nr}", isa.name), (mr, nr, kr, isa.f32_lanes)
        register_microkernel(Microkernel(*names, *types[1:], *tile, multiply_add, llvm_ir))


def _registry() -> dict[str, Microkernel]:
    """Every microkernel by name, with all families loaded."""
    _load_families()
    return _kernels


@functools.cache  # called thousands of times while a model is compiled
def _load_families() -> None:
    for family in FAMILIES:
        importlib.import_module(f"{__package__}.kernels.{family}")


def microkernel_named(name: str) -> Microkernel:
    """The microkernel of that name.

    Raises
    ------
    IsaError
        If there is none.
    """
    kernels = _registry()
    if name not in kernels:
        raise IsaError(f"no microkernel {name!r}; there are {', '.join(sorted(kernels))}")
    return kernels[name]


def all_microkernels() -> tuple[Microkernel, ...]:
    """Every registered microkernel, in order of registration."""
    return tuple(_registry().values())


def kernels_for(isa: Isa, a_dtype: str, b_dtype: str) -> tuple[Microkernel, ...]:
    """The vector kernels for these operand types on the highest level within `isa` that has any.

    Raises
    ------
    IsaError
        If no level has one.
    """
    fitting = [kernel for kernel in _fitting(isa, a_dtype, b_dtype) if not kernel.by_tiles]
    if not fitting:
        raise IsaError(f"no microkernel multiplies {a_dtype} by {b_dtype} on {isa.name}")
    highest = max(kernel.isa.level for kernel in fitting)
    return tuple(kernel for kernel in fitting if kernel.isa.level == highest)


def tile_kernels_for(isa: Isa, a_dtype: str, b_dtype: str) -> tuple[Microkernel, ...]:
    """The kernels for these operand types that multiply tile registers; empty on most levels."""
    return tuple(kernel for kernel in _fitting(isa, a_dtype, b_dtype) if kernel.by_tiles)


def _fitting(isa: Isa, a_dtype: str, b_dtype: str) -> list[Microkernel]:
    return [
        kernel
        for kernel in _registry().values()
        if (kernel.a_dtype, kernel.b_dtype) == (a_dtype, b_dtype) and isa.includes(kernel.isa)
    ]
