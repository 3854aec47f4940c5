"""Cost: an estimated time in named terms, to compare ways to compute something."""

from __future__ import annotations

from dataclasses import dataclass, fields

from microkernels.isa import isa_named
from microkernels.kernels.byte_pairs import has_pairs
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel

_WORDS = {"barriers": "calls and barriers"}


@dataclass(frozen=True)
class Cost:
    """Time of the busiest thread, in the unit of the estimate: microseconds or cycles.

    Attributes
    ----------
    compute : float
        Products and other arithmetic from cache; grows where threads are idle or tiles thin.
    transforms : float
        Changing operands and results into another form (Winograd).
    weights : float
        Reading weights from beyond L2, as far as computing does not hide it.
    between : float
        Moving intermediate results beyond L2 and between cores.
    barriers : float
        Calls of kernels, and forks and joins.
    """

    compute: float = 0.0
    transforms: float = 0.0
    weights: float = 0.0
    between: float = 0.0
    barriers: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return self.compute + self.transforms + self.weights + self.between + self.barriers

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))

    def times(self, factor: float) -> Cost:
        """The cost with every term multiplied by a factor."""
        return Cost(*(getattr(self, f.name) * factor for f in fields(Cost)))

    def changes(self, before: Cost) -> str:
        """The terms that differ from those of another cost, as text."""
        terms = [
            f"{_WORDS.get(field.name, field.name)} {change:+.1f}"
            for field in fields(Cost)
            if abs(change := getattr(self, field.name) - getattr(before, field.name)) >= 0.05
        ]
        return ", ".join(terms) or "nothing saved"


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
    """Elements of K that a kernel multiplies in about the time of one f32 product of vectors."""
    return kernel.kr // 2 if has_pairs(kernel) else kernel.kr


def norm_us(vectors: float, machine: Machine) -> float:
    """Microseconds in which one thread normalises rows of `vectors` vectors."""
    return vectors * NORM_CYCLES / machine.cycles_per_us


def flops_us(flops: float, machine: Machine) -> float:
    """Microseconds in which one thread multiplies and adds f32 numbers in full vectors."""
    each_us = 2 * machine.isa.f32_lanes * machine.fma_rate * machine.cycles_per_us
    return flops / each_us
