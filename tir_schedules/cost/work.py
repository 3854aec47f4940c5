"""How long a thread computes: what turns estimated cycles and sizes into time."""

from __future__ import annotations

from microkernels.isa import isa_named
from microkernels.kernels.byte_pairs import has_pairs
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel

NORM_CYCLES = 7.0  # a vector of a normalised row: 7.4 (layer_norm), 5.9 (rms_norm) measured


def has_tiles(machine: Machine) -> bool:
    """Whether kernels for the machine may multiply tiles."""
    return machine.isa.includes(isa_named("amx"))


def product_rate(kernel: Microkernel, machine: Machine) -> float:
    """Products of vectors that a vector kernel starts in a cycle."""
    if has_pairs(kernel):  # two of words take as many instructions as a product of f32, and more
        return machine.fma_rate / 2
    dots = kernel.isa.name == "avx512_bf16" and kernel.kr == 2
    return machine.bf16_rate if dots else machine.fma_rate


def elements_a_product(kernel: Microkernel) -> int:
    """Elements of K that are multiplied in about the time of one of f32, of a whole vector."""
    return kernel.kr // 2 if has_pairs(kernel) else kernel.kr


def norm_us(vectors: float, machine: Machine) -> float:
    """Microseconds in which one thread normalises rows of so many vectors."""
    return vectors * NORM_CYCLES / machine.cycles_per_us


def flops_us(flops: float, machine: Machine) -> float:
    """Microseconds in which one thread multiplies and adds f32 numbers in full vectors."""
    each_us = 2 * machine.isa.f32_lanes * machine.fma_rate * machine.cycles_per_us
    return flops / each_us
