"""Integer instructions in a trap compute what the CPU computes.

Every random program is assembled twice: after an AMX instruction, whose trap continues with it, and
without AMX. Registers, memory and every flag that the manual defines must be equal.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest

from tests.amx_emulator import emulator
from tests.amx_emulator.assembly import assembled
from tests.amx_emulator.glue_programs import FLAGS, MEMORY_BYTES, REGISTERS, GlueProgram

pytestmark = [
    pytest.mark.isa("amx"),
    pytest.mark.skipif(not emulator.available(), reason="the hardware executes these by itself"),
]

SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")
EDGES = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
PROGRAMS = 400
INPUTS = 6


def routine(program: GlueProgram, name: str, with_amx: bool) -> str:
    """Loads registers and flags from (rdi), runs the program, and stores them."""
    load = [f"pushq %{register}" for register in SAVED]
    load += [f"pushq {8 * len(REGISTERS)}(%rdi)", "popfq"]
    load += [f"movq {8 * i}(%rdi), %{register}" for i, register in enumerate(REGISTERS)]
    store = [f"movq %{register}, {8 * i}(%rdi)" for i, register in enumerate(REGISTERS)]
    store += [f"popq {8 * len(REGISTERS)}(%rdi)"]
    store += [f"popq %{register}" for register in reversed(SAVED)]
    amx = ["tilerelease"] if with_amx else []
    body = [*load, *amx, program.text(name, with_amx), *amx, "pushfq", *store, "ret"]
    return "\n".join([*body, f"data{name}: .quad 0x8000000F7FFFFFFA"])


def compare(programs: Sequence[GlueProgram]) -> list[int]:
    """Runs programs in both ways on random values; returns the number of traps of each program."""
    routines = {}
    for i, program in enumerate(programs):
        routines[f"trapped{i}"] = routine(program, f"trapped{i}", True)
        routines[f"plain{i}"] = routine(program, f"plain{i}", False)
    library = assembled(routines)
    rng = np.random.default_rng(0)
    traps = []
    for i, program in enumerate(programs):
        for _ in range(INPUTS):
            values = rng.integers(0, 2**64, len(REGISTERS) + 1, np.uint64)
            chosen = rng.random(values.size) < 0.5
            values[chosen] = rng.choice(EDGES, int(chosen.sum()))
            values[-1] = (values[-1] & np.uint64(FLAGS)) | np.uint64(0x202)
            memory = rng.integers(0, 256, MEMORY_BYTES).astype(np.uint8)
            results = []
            for kind in ("plain", "trapped"):
                registers, bytes_ = values.copy(), memory.copy()
                emulator.reset()
                addresses = registers.ctypes.data, bytes_.ctypes.data
                library[f"{kind}{i}"](*map(ctypes.c_void_p, addresses))
                registers[-1] &= np.uint64(program.defined)
                results.append((registers, bytes_))
            traps.append(emulator.traps())
            for plain, trapped in zip(*results, strict=True):
                np.testing.assert_array_equal(trapped, plain, "\n".join(program.lines))
    return traps


def test_programs_between_amx_instructions_take_one_trap() -> None:
    assert set(compare([GlueProgram(seed).grow() for seed in range(PROGRAMS)])) == {1}


def test_the_cpu_executes_unknown_instructions() -> None:
    programs = [GlueProgram(seed).grow(foreign=True) for seed in range(PROGRAMS)]
    assert max(compare(programs)) > 1


def test_glue_can_be_switched_off() -> None:
    emulator.library().amx_emulator_enable_glue(0)
    try:
        traps = compare([GlueProgram(seed).grow() for seed in range(10)])
    finally:
        emulator.library().amx_emulator_enable_glue(1)
    assert min(traps) > 1


def test_a_loop_without_amx_goes_back_to_the_cpu() -> None:
    """After an AMX instruction a trap executes at most 64 other instructions."""
    library = assembled({"count": "tilerelease\nmovl $100000, %eax\n1: decl %eax\njne 1b"})
    assert library["count"]() == 0
    assert emulator.library().amx_emulator_glue_steps() == 64
