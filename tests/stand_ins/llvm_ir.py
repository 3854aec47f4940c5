"""Functions, vectors and numbers as LLVM IR text."""

from __future__ import annotations

from collections.abc import Sequence

PREFIX = "stand_in."

FLOATS, WORDS, BITS = "<16 x float>", "<16 x i32>", "<16 x i1>"

# LLVM IR writes numbers of type float as the bits of a double.
INFINITY = "0x7FF0000000000000"
MINUS_INFINITY = "0xFFF0000000000000"
NAN = "0x7FF8000000000000"
SMALLEST_NORMAL = "0x3810000000000000"  # 2^-126
TWO_TO_31 = "0x41E0000000000000"
MINUS_TWO_TO_31 = "0xC1E0000000000000"
TWO_TO_64 = "0x43F0000000000000"
TWO_TO_MINUS_62 = "0x3C10000000000000"


def function(result: str, name: str, parameters: str, body: str) -> str:
    """A function that replaces an intrinsic, or a helper of one; it is always inlined."""
    return (
        f"define linkonce_odr hidden {result} @{PREFIX}{name}({parameters})"
        f" alwaysinline nounwind {{\n{body}}}\n"
    )


def constant(element: str, numbers: Sequence[int]) -> str:
    """A vector of integers."""
    return f"<{len(numbers)} x {element}> <{', '.join(f'{element} {n}' for n in numbers)}>"
