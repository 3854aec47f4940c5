"""The decoder agrees with the assembler on random instructions, and claims no other instruction."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.amx_emulator import emulator
from tests.amx_emulator.assembly import assembled
from tests.amx_emulator.tiles import PRODUCTS

pytestmark = pytest.mark.skipif(not emulator.available(), reason="there is nothing to emulate here")

# In the order of the registers' numbers.
REGISTERS = [
    "rax",
    "rcx",
    "rdx",
    "rbx",
    "rsp",
    "rbp",
    "rsi",
    "rdi",
    *(f"r{i}" for i in range(8, 16)),
]
VALUES = [random.Random(1).getrandbits(47) for _ in REGISTERS]
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Expected:
    """An instruction as the assembler reads it, and the fields that decoding must find."""

    text: str
    name: str
    tiles: tuple[int, ...] = ()  # reg, rm, vvvv
    address: int = 0
    stride: int = 0


class Decoded(ctypes.Structure):
    """The fields that `amx_emulator_decode` fills in."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("operation", "length", "reg", "rm", "vvvv", "address", "stride", "faulty")
    ]


def decoded(address: int) -> Decoded | None:
    """The AMX instruction at an address; None if the instruction is not AMX."""
    result = Decoded()
    registers = (ctypes.c_uint64 * 16)(*VALUES)
    code = ctypes.c_void_p(address)
    found = emulator.library().amx_emulator_decode(code, registers, ctypes.byref(result))
    return result if found else None


def random_instruction(rng: random.Random) -> Expected:
    tiles = tuple(rng.sample(range(8), 3))
    kind = rng.choice(["config", "release", "zero", "transfer", "transfer", "product", "product"])
    if kind == "release":
        return Expected("tilerelease", "tilerelease")
    if kind == "zero":
        return Expected(f"tilezero %tmm{tiles[0]}", "tilezero", tiles[:1])
    if kind == "product":
        name = rng.choice(PRODUCTS)
        destination, left, right = tiles
        return Expected(f"{name} %tmm{right}, %tmm{left}, %tmm{destination}", name, tiles)
    base = rng.choice([*REGISTERS, None])
    index = rng.choice([None, *(x for x in REGISTERS if x != "rsp")])
    scale = rng.choice([1, 2, 4, 8])
    displacement = rng.choice([0, 1, -1, 127, -128, 128, 4096, -100000, 2**31 - 1, -(2**31)])
    if base is None and index is None:
        base = "r13"
    begin = (VALUES[REGISTERS.index(base)] if base else 0) + displacement
    stride = VALUES[REGISTERS.index(index)] * scale if index else 0
    registers = (f"%{base}" if base else "") + (f",%{index},{scale}" if index else "")
    memory = f"{displacement}({registers})"
    if kind == "config":
        name = rng.choice(["ldtilecfg", "sttilecfg"])
        return Expected(f"{name} {memory}", name, (), (begin + stride) & MASK)
    name = rng.choice(["tileloadd", "tileloaddt1", "tilestored"])
    tile = f"%tmm{tiles[0]}"
    text = f"{name} {tile}, {memory}" if name == "tilestored" else f"{name} {memory}, {tile}"
    return Expected(text, name, tiles[:1], begin & MASK, stride & MASK)


def addresses(texts: Sequence[str]) -> list[int]:
    """The address of each assembled text, and the end of the last one."""
    bodies = [f"{text}\nend{i}:" for i, text in enumerate(texts)]
    table = "lea table(%rip), %rax\nret\ntable:\n" + "\n".join(
        f".quad f{i} - table, end{i} - f{i}" for i in range(len(texts))
    )
    library = assembled({**{f"f{i}": body for i, body in enumerate(bodies)}, "locate": table})
    library.locate.restype = ctypes.c_void_p
    begin = library.locate()
    rows = (ctypes.c_int64 * (2 * len(texts))).from_address(begin)
    _libraries.append(library)
    return [begin + rows[2 * i] for i in range(len(texts))] + list(rows[1::2])


_libraries: list[ctypes.CDLL] = []


def test_instructions_of_the_assembler_are_decoded() -> None:
    rng = random.Random(0)
    cases = [random_instruction(rng) for _ in range(4000)]
    table = addresses([case.text for case in cases])
    seen = set()
    for case, address, length in zip(cases, table, table[len(cases) :], strict=False):
        found = decoded(address)
        assert found is not None, case
        name = emulator.library().amx_emulator_name(found.operation).decode()
        seen.add(name)
        assert (name, found.length, found.faulty) == (case.name, length, 0), case
        assert (found.reg, found.rm, found.vvvv)[: len(case.tiles)] == case.tiles, case
        if "(" in case.text:
            assert (found.address & MASK, found.stride & MASK) == (case.address, case.stride), case
    assert seen == set(emulator.counts_by_name())


def test_addresses_relative_to_the_instruction() -> None:
    begin, length = addresses(["ldtilecfg 1000(%rip)"])
    found = decoded(begin)
    assert found is not None and found.length == length
    assert found.address == begin + length + 1000


def test_segment_prefixes_without_a_meaning() -> None:
    for prefix in (0x26, 0x2E, 0x36, 0x3E):
        begin, length = addresses([f".byte {prefix}\ntileloadd (%rax,%rbx,1), %tmm1"])
        found = decoded(begin)
        assert found is not None and (found.length, found.faulty) == (length, 0)


@pytest.mark.parametrize(
    "text",
    [
        ".byte 0x67\ntilestored %tmm1, (%rax,%rbx,1)",
        ".byte 0x64\ntileloadd (%rax,%rbx,1), %tmm1",
        ".byte 0x65\ntilestored %tmm1, (%rax,%rbx,1)",
        "tileloadd (%eax,%ebx,1), %tmm1",
    ],
)
def test_addresses_that_are_not_emulated_are_faults(text: str) -> None:
    found = decoded(addresses([text])[0])
    assert found is not None and found.faulty


def neighbours() -> list[str]:
    """Instructions that share AMX's map and opcodes, or its opcodes in other maps."""
    texts = [
        "nop",
        "ud2",
        "ret",
        "vpermilps %ymm1, %ymm2, %ymm3",
        "vpdpbusd %zmm1, %zmm2, %zmm3",
        "vdpbf16ps %zmm1, %zmm2, %zmm3",
        "{vex} vpdpbusd %ymm1, %ymm2, %ymm3",
        "andn %rax, %rbx, %rcx",
        "pdep %rax, %rbx, %rcx",
        "shlx %rax, %rbx, %rcx",
        "vbroadcastss %xmm0, %ymm1",
        "vfmadd231ps %ymm0, %ymm1, %ymm2",
    ]
    for second in range(256):
        # Before AMX's opcodes: maps 0 to 31 of VEX with W and L set, and every prefix.
        for opcode in (0x49, 0x4B, 0x5C, 0x5E):
            if second & 0x1F != 2:
                texts.append(f".byte 0xC4, {second}, {0x78 | second & 3}, {opcode}, 0xC0, 0, 0, 0")
    for third in range(256):
        for opcode in (0x49, 0x4B, 0x5C, 0x5E):
            if third & 0x84:  # W or L
                texts.append(f".byte 0xC4, 0xE2, {third}, {opcode}, 0xC0, 0, 0, 0")
                texts.append(f".byte 0xC4, 0xE2, {third}, {opcode}, 0x04, 0x20, 0, 0")
    for modrm in range(256):
        in_memory, reg, rm = modrm < 0xC0, modrm >> 3 & 7, modrm & 7
        for pp in range(4):
            exists = {
                0x49: (pp in (0, 1) and in_memory and reg == 0)
                or (pp == 0 and modrm == 0xC0)
                or (pp == 3 and not in_memory and rm == 0),
                0x4B: in_memory and pp != 0,
                0x5C: not in_memory and pp in (2, 3),
                0x5E: not in_memory,
            }
            for opcode in (op for op, there in exists.items() if not there):
                texts.append(f".byte 0xC4, 0xE2, {0x78 | pp}, {opcode}, {modrm}, 0, 0, 0, 0, 0, 0")
    for prefix in (0x66, 0xF2, 0xF3, 0xF0, 0x48):  # not before VEX
        texts.append(f".byte {prefix}\ntilerelease")
    return texts


def test_other_instructions_are_not_claimed() -> None:
    texts = neighbours()
    assert len(texts) > 3000
    claimed = [text for text, place in zip(texts, addresses(texts), strict=False) if decoded(place)]
    assert not claimed


def test_random_bytes_are_not_claimed() -> None:
    """The decoder claims random bytes only if they begin like an AMX instruction."""
    rng = random.Random(2)
    for _ in range(20000):
        code = bytearray(rng.randbytes(32))
        if rng.random() < 0.5:
            code[:2] = 0xC4, rng.choice([0xE2, 0xC2, rng.randrange(256)])
            code[3] = rng.choice([0x49, 0x4B, 0x5C, 0x5E, rng.randrange(256)])
        buffer = (ctypes.c_uint8 * 32)(*code)
        found = decoded(ctypes.addressof(buffer))
        while code and code[0] in (0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x67):
            del code[0]
        begins_like_one = (
            code[0] == 0xC4
            and code[1] & 0x1F == 2
            and not code[2] & 0x84
            and code[3] in (0x49, 0x4B, 0x5C, 0x5E)
        )
        assert begins_like_one or found is None
