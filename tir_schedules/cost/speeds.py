"""How fast a machine computes and moves data: what turns estimated cycles and bytes into time.

Measured on one machine (Zen 4, 2 cores, 3.7 GHz). No machine with AMX was measured: for those the
numbers come from the model in `amx_cost`, with clock and memory bandwidth of a data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from microkernels.amx.scoreboard import SAPPHIRE_RAPIDS
from microkernels.isa import isa_named
from tir_schedules.core.machine import Machine

from .amx_cost import VECTOR_RATE


@dataclass(frozen=True)
class Speeds:
    """Speeds of one core, and of all cores at the memory.

    Attributes
    ----------
    cycles_per_us : float
        Cycles as `blocking.estimate_cycles` counts them.
    l3_rate, memory_rate : float
        Bytes per microsecond that one core reads.
    shared_memory_rate : float
        Bytes per microsecond that all cores read from memory together.
    """

    cycles_per_us: float
    l3_rate: float
    memory_rate: float
    shared_memory_rate: float


# Bytes per microsecond that another core wrote (BERT, 32 rows: at a third of this, merges that lose
# seem to win).
FOREIGN_RATE = 10e3
NORM_CYCLES = 7.0  # a vector of a normalised row: 7.4 (layer_norm), 5.9 (rms_norm) measured

MEASURED = Speeds(3700.0, 99e3, 24e3, 40e3)
# Xeon Platinum 8480+: 3.0 GHz on all cores, eight channels of DDR5-4800, four fifths of which come.
_CLOCK = 3000.0
_, _L3_BYTES, _MEMORY_BYTES = SAPPHIRE_RAPIDS.rates
WITH_AMX = Speeds(
    VECTOR_RATE * _CLOCK, _L3_BYTES * _CLOCK, _MEMORY_BYTES * _CLOCK, 0.8 * 8 * 38.4e3
)


def has_tiles(machine: Machine) -> bool:
    """Whether kernels for the machine may multiply tiles."""
    return machine.isa.includes(isa_named("amx"))


def speeds_of(machine: Machine) -> Speeds:
    """The speeds that estimates for a machine are made with."""
    return WITH_AMX if has_tiles(machine) else MEASURED


def norm_us(vectors: int, machine: Machine) -> float:
    """Microseconds in which one thread normalises rows of so many vectors."""
    return vectors * NORM_CYCLES / speeds_of(machine).cycles_per_us
