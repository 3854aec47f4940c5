"""Which tests of templates stay for which instruction sets."""

from __future__ import annotations

from .sampling import kept_isas

ISAS = ["scalar", "avx2", "avx2_vnni", "avx512", "avx512_vnni"]


def kept_of(tests: dict[str, list[str]]) -> dict[str, list[str]]:
    kept = kept_isas((name, isa) for name, isas in tests.items() for isa in isas)
    return {name: [isa for isa in isas if (name, isa) in kept] for name, isas in tests.items()}


def test_another_third_from_test_to_test() -> None:
    assert kept_of({f"a.py::test_{n}": ISAS for n in range(4)}) == {
        "a.py::test_0": ["scalar", "avx512"],
        "a.py::test_1": ["avx2", "avx512_vnni"],
        "a.py::test_2": ["avx2_vnni"],
        "a.py::test_3": ["scalar", "avx512"],
    }


def test_each_file_keeps_each_instruction_set() -> None:
    """What its other tests leave is left to the first test that has it."""
    tests = {"a.py::test_0": ISAS[:3], "a.py::test_1": ISAS[:2], "b.py::test_0": ISAS}
    assert kept_of(tests) == {
        "a.py::test_0": ["scalar", "avx2_vnni"],
        "a.py::test_1": ["avx2"],
        "b.py::test_0": ISAS,
    }


def test_each_test_keeps_one() -> None:
    tests = {f"a.py::test_{n}": ISAS[: 1 + n % 3] for n in range(9)}
    assert all(kept_of(tests).values())
