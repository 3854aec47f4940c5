"""Every stand-in agrees with NumPy, and so does the instruction if the CPU has it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import tvm
import tvm.tirx.script.builder.ir as I
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS, llvm_functions
from microkernels.vector.expressions import parameter
from tests.stand_ins import intel
from tests.stand_ins.building import PRESENT
from tests.stand_ins.meanings import MEANINGS
from tests.stand_ins.rewriting import imported_text

TIMES = 400  # vectors of each operand


@dataclass(frozen=True)
class Case:
    """An instruction, its operands' types (of NumPy and LLVM) and its constants."""

    meaning: Callable[..., np.ndarray]
    operands: tuple[tuple[str, str], ...]
    result: tuple[str, str]
    constants: str = ""


F, I32, I16, I8, U8 = (
    ("uint32", "<16 x float>"),
    ("int32", "<16 x i32>"),
    ("int16", "<32 x i16>"),
    ("int8", "<64 x i8>"),
    ("uint8", "<64 x i8>"),
)
BF16 = ("uint16", "<32 x bfloat>")
HALF = ("int32", "<8 x i32>"), ("uint8", "<32 x i8>"), ("int8", "<32 x i8>")
_PERMUTE_TWO = lambda a, index, b: intel.permute(index, a, b)  # noqa: E731
_PERMUTE_ONE = lambda a, index: intel.permute(index, a)  # noqa: E731


def masked(meaning: Callable[..., np.ndarray], mask: int) -> Callable[..., np.ndarray]:
    """Takes lanes whose mask bit is 0 from the last operand."""
    kept = (mask >> np.arange(16)) & 1 == 1

    def merged(*operands: np.ndarray) -> np.ndarray:
        return np.where(kept, meaning(*operands[:-1]), operands[-1])

    return merged


def cases_of(name: str) -> list[Case]:
    """Ways to call an intrinsic: one for every mask and rounding."""
    cases = {
        "vpdpbusd.512": [Case(intel.vpdpbusd, (I32, U8, I8), I32)],
        "vpdpbusd.256": [Case(intel.vpdpbusd, HALF, HALF[0])],
        "pmaddw.d.512": [Case(intel.pmaddwd, (I16, I16), I32)],
        "pmaddubs.w.512": [Case(intel.pmaddubsw, (U8, I8), I16)],
        "packssdw.512": [Case(functools.partial(intel.pack, dtype="int16"), (I32, I32), I16)],
        "packsswb.512": [Case(functools.partial(intel.pack, dtype="int8"), (I16, I16), I8)],
        "packuswb.512": [Case(functools.partial(intel.pack, dtype="uint8"), (I16, I16), U8)],
        "vpermi2var.d.512": [Case(_PERMUTE_TWO, (I32, I32, I32), I32)],
        "vpermi2var.hi.512": [Case(_PERMUTE_TWO, (I16, I16, I16), I16)],
        "permvar.si.512": [Case(_PERMUTE_ONE, (I32, I32), I32)],
        "permvar.sf.512": [Case(_PERMUTE_ONE, (F, I32), F)],
        "mask.scalef.ps.512": [
            Case(masked(intel.scalef, mask), (F, F, F), F, f"i16 {mask}, i32 4")
            for mask in (0xFFFF, 0x5A0F)
        ],
        "mask.cvtps2dq.512": [
            Case(
                masked(functools.partial(intel.cvtps2dq, rounding=rounding), mask),
                (F, I32),
                I32,
                f"i16 {mask}, i32 {rounding}",
            )
            for rounding, mask in itertools.product((4, 8, 9, 10, 11), (0xFFFF, 0x5A0F))
        ],
        "cvtneps2bf16.512": [Case(intel.cvtneps2bf16, (F,), ("uint16", "<16 x bfloat>"))],
        "cvtne2ps2bf16.512": [Case(intel.cvtne2ps2bf16, (F, F), BF16)],
        "dpbf16ps.512": [Case(intel.dpbf16ps, (F, BF16, BF16), F)],
    }
    return cases[name.split(".", 3)[3]]


def lanes_of(kind: tuple[str, str]) -> int:
    return int(kind[1][1:].split(" ")[0])


def floats(rng: np.random.Generator, size: int) -> np.ndarray:
    """f32 bits: any, those next to special thresholds, small integers and halves."""
    special = np.array(
        [
            *(0, 1, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3F000000, 0x3EFFFFFF, 0x3FC00000),
            *(0x40200000, 0x4EFFFFFF, 0x4F000000, 0x4F000001, 0x7F7FFFFF, 0x7F800000, 0x7F800001),
            *(0x7FC00000, 0x7F7F8000, 0x7F7F7FFF, 0x3F808000, 0x3F818000, 0x3F808001, 0x42FE0000),
            *(0x43000000, 0x43160000, 0x43158000, 0x437A0000, 0x43960000, 0x44000000, 0x7F000000),
        ],
        np.uint32,
    )
    any_bits = rng.integers(0, 2**32, size, dtype=np.uint32)
    moderate = (rng.standard_normal(size) * 2.0 ** rng.integers(-10, 12, size)).astype(np.float32)
    halves = (rng.integers(-600, 600, size) / 2).astype(np.float32)
    kinds = rng.integers(0, 4, size)
    chosen = rng.choice(special, size) | rng.integers(0, 2, size, dtype=np.uint32) << np.uint32(31)
    choices = [any_bits, moderate.view(np.uint32), halves.view(np.uint32), chosen]
    return np.choose(kinds, choices).astype(np.uint32)


def random_operand(rng: np.random.Generator, kind: tuple[str, str], size: int) -> np.ndarray:
    if kind[0] == "uint32":
        return floats(rng, size)
    if kind[0] == "uint16":
        return (floats(rng, size) >> 16).astype(np.uint16)
    ends = np.iinfo(kind[0])
    values = rng.integers(ends.min, ends.max, size, kind[0], endpoint=True)
    near = rng.integers(-300, 300, size).astype(kind[0])
    at_end = rng.choice(np.array([ends.min, ends.max, ends.max - 1, 0], kind[0]), size)
    return np.choose(rng.integers(0, 3, size), [values, near, at_end]).astype(kind[0])


def loop_of(name: str, case: Case, text_of: Callable[[str], str]) -> tvm.runtime.Executable:
    """y[t] = instruction(a[t], b[t], ...) for every t."""
    kinds = [*case.operands, case.result]
    parameters = ", ".join(f"ptr %p{i}" for i in range(len(kinds)))
    loads = "".join(
        f"  %v{i} = load {kind[1]}, ptr %p{i}, align 1\n" for i, kind in enumerate(case.operands)
    )
    values = ", ".join(f"{kind[1]} %v{i}" for i, kind in enumerate(case.operands))
    given = values + (f", {case.constants}" if case.constants else "")
    types = ", ".join(part.strip().rsplit(" ", 1)[0] for part in given.split(", "))
    result, last = case.result[1], len(case.operands)
    text = f"""
define linkonce_odr i32 @attempt({parameters}) #0 {{
{loads}  %r = call {result} @{name}({given})
  store {result} %r, ptr %p{last}, align 1
  ret i32 0
}}
declare {result} @{name}({types})
attributes #0 = {{ alwaysinline nounwind }}
"""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"global_symbol": "main", **NO_ALIAS})
        arrays = [
            parameter(f"p{i}", (TIMES * lanes_of(kind),), kind[0]) for i, kind in enumerate(kinds)
        ]
        with llvm_functions(text_of(text)), I.serial(TIMES) as t:
            places = [
                I.address_of(array[t * lanes_of(kind)])
                for array, kind in zip(arrays, kinds, strict=True)
            ]
            I.evaluate(I.call_extern("int32", "attempt", *places))
    features = sorted(PRESENT)
    target = {"kind": "llvm", "mcpu": "x86-64", "mattr": [f"+{each}" for each in features]}
    return tvm.compile(builder.get(), target=target)


CASES = [
    pytest.param(name, case, id=f"{name.removeprefix('llvm.x86.')}-{case.constants}")
    for name in MEANINGS
    for case in cases_of(name)
]


def results(
    name: str, case: Case, text_of: Callable[[str], str], operands: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The code's results and the manual's, for TIMES vectors of each operand."""
    found = np.zeros(TIMES * lanes_of(case.result), case.result[0])
    loop_of(name, case, text_of)["main"](*operands, found)
    rows = [x.reshape(TIMES, -1) for x in operands]
    wanted = np.concatenate([case.meaning(*(x[t] for x in rows)) for t in range(TIMES)])
    return found, wanted.astype(case.result[0])


def check(name: str, case: Case, text_of: Callable[[str], str]) -> None:
    rng = np.random.default_rng(0)
    operands = [random_operand(rng, kind, TIMES * lanes_of(kind)) for kind in case.operands]
    found, wanted = results(name, case, text_of, operands)
    if case.result[0] == "uint32":  # the NaN of an arithmetic operation may have any payload
        nan = np.isnan(found.view(np.float32)) & np.isnan(wanted.view(np.float32))
        found, wanted = (np.where(nan, np.uint32(0x7FC00000), x) for x in (found, wanted))
    np.testing.assert_array_equal(found, wanted)


def by_stand_in(text: str) -> str:
    return imported_text(text, frozenset())


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_stand_in_computes_what_the_manual_says(name: str, case: Case) -> None:
    check(name, case, by_stand_in)


@pytest.mark.parametrize("feature", sorted({each.features[0] for each in MEANINGS.values()}))
def test_the_instructions_compute_it_too(feature: str) -> None:
    if feature not in PRESENT:
        pytest.skip(f"this CPU has no {feature}")
    for name, meaning in MEANINGS.items():
        if meaning.features == (feature,):
            for case in cases_of(name):
                check(name, case, str)


def test_subnormal_results_are_found_before_the_exponent_is_limited() -> None:
    """Sums within 2^-150 of 2^-126 that round up to it only as subnormal numbers become zero."""
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    (case,) = cases_of(name)
    rng = np.random.default_rng(1)
    c = rng.choice(np.array([0x800000, 0x800001, 0x80800000], np.uint32), TIMES * 16)
    a, b = (
        (rng.integers(51, 54, TIMES * 32) << 7 | rng.integers(0, 128, TIMES * 32)).astype(np.uint16)
        | (rng.integers(0, 2, TIMES * 32) << 15).astype(np.uint16)
        for _ in range(2)
    )
    found, wanted = results(name, case, by_stand_in, [c, a, b])
    np.testing.assert_array_equal(found, wanted)
    odd = [(x[1::2].astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (a, b)]
    first = odd[0] * odd[1] + c.view(np.float32)
    limited = np.abs(first.astype(np.float32)) >= intel.SMALLEST_NORMAL
    assert (limited & (np.abs(first) < intel.SMALLEST_NORMAL - 2.0**-151)).any()
