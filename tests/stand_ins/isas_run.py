"""Which instruction sets a test ran, and how: on the CPU, by stand-ins, or not at all.

A test for AMX counts as run by stand-ins if tiles are emulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from microkernels.isa import LADDER, isa_named

from .building import PRESENT

NATIVE, STAND_IN, NOT_RUN = WAYS = ("native", "by stand-in", "not at all")

_noted: set[tuple[str, str]] = set()


def substitute_of(isa: str) -> str:
    """The instruction set whose target stands for another one on this CPU, mostly itself.

    A CPU without AVX-VNNI may have AVX-512 VNNI: the same instruction in another encoding.
    """
    if isa == "avx2_vnni" and not _has(isa) and _has("avx512_vnni"):
        return "avx512_vnni"
    return isa


def _has(isa: str) -> bool:
    return PRESENT.issuperset(isa_named(isa).features)


def runs_itself(isa: str) -> bool:
    """Whether this CPU executes an instruction set's code without stand-ins."""
    return _has(substitute_of(isa))


def can_run(isa: str) -> bool:
    """Whether this CPU executes an ISA's code, directly or by stand-ins, which need AVX2.

    A CPU with AMX emulates nothing, even if its AMX has no fp16 tiles.
    """
    if isa == "amx_fp16" and _has("amx") and not _has(isa):
        return False
    return runs_itself(isa) or runs_itself("avx2")


def note(isa: str) -> None:
    """Notes that the current test runs code of an instruction set."""
    _noted.add((isa, NATIVE if runs_itself(isa) else STAND_IN))


def note_skipped(isa: str) -> None:
    """Notes that the current test is skipped for lack of an instruction set."""
    _noted.add((isa, NOT_RUN))


def taken() -> list[list[str]]:
    """Notes since the last call: pairs of an instruction set and a way."""
    found = sorted(map(list, _noted))
    _noted.clear()
    return found


def table(tests: Iterable[Iterable[Iterable[str]]]) -> list[str]:
    """Lines with the number of tests per instruction set and way.

    Parameters
    ----------
    tests : iterable
        What `taken` returned, for every test.
    """
    counts = Counter(tuple(pair) for test in tests for pair in test)
    lines = [f"{'code for':<14}" + "".join(f"{way:>14}" for way in WAYS)]
    for isa in LADDER:
        numbers = [counts[isa.name, way] for way in WAYS]
        lines.append(f"{isa.name:<14}" + "".join(f"{number:>14}" for number in numbers))
    return lines
