"""Casts to integers and integer divisions have a defined result for every value."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

import tvm_hybrid
from tests.relay_passes.graphs import module


def run(mod: tvm.IRModule, *arrays: NDArray) -> list[NDArray]:
    """Compiles the module by the whole pipeline and runs it."""
    executable = tvm_hybrid.compile(mod, num_threads=1, records=[])
    return [each.numpy() for each in executable.run(*arrays)]


QUOTIENTS = {"divide": np.trunc, "floor_divide": np.floor}
REMAINDERS = {"mod": np.trunc, "floor_mod": np.floor}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_no_division_ends_the_process(dtype: str) -> None:
    """Quotient and remainder by 0 are 0; the lowest integer divided by -1 is itself."""
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    pairs = [(5, 0), (low, 0), (high, 0), (0, 0), (9, 2), (high, 3), (0, 7), (high, high)]
    if low:
        pairs += [(low, -1), (5, -1), (-9, 2), (9, -2), (-9, -2), (low, 3), (low, high), (0, -1)]
    pairs *= 5  # vectors and a tail
    x, y = (np.array(side, dtype) for side in zip(*pairs, strict=True))
    names = [*QUOTIENTS, *REMAINDERS]
    mod = module(
        lambda a, b: [
            *(getattr(relax.op, name)(a, b) for name in names),
            *(getattr(relax.op, name)(a, relax.const(tvm.runtime.tensor(y))) for name in names),
        ],
        (x.shape, dtype),
        (y.shape, dtype),
    )
    for name, got in zip(2 * names, run(mod, x, y), strict=True):
        wanted = []
        for a, b in pairs:
            quotient = a // b if b else 0  # Python's integers divide downwards
            if b and name in ("divide", "mod") and quotient * b != a and (a < 0) != (b < 0):
                quotient += 1
            exact = quotient if name in QUOTIENTS else a - quotient * b if b else 0
            wanted.append(exact % 2 ** (8 * x.itemsize))
        bits = np.array(wanted, np.uint64).astype(f"uint{8 * x.itemsize}").view(dtype)
        np.testing.assert_array_equal(got, bits, err_msg=name)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_a_shift_by_any_number_has_a_result(dtype: str) -> None:
    """A shift by a negative number, or by at least the width, moves all bits out."""
    limits, width = np.iinfo(dtype), np.dtype(dtype).itemsize * 8
    numbers = [1, 5, int(limits.max), int(limits.min)]
    pairs = [(a, b) for a in numbers for b in (0, 1, width - 1, width, width + 1, 127)]
    if limits.min:
        pairs += [(a, b) for a in numbers for b in (-1, int(limits.min))]
    x, y = (np.array(side, dtype) for side in zip(*pairs, strict=True))
    mod = module(
        lambda a, b: [relax.op.left_shift(a, b), relax.op.right_shift(a, b)],
        (x.shape, dtype), (y.shape, dtype),
    )  # fmt: skip
    left, right = run(mod, x, y)
    counts = [b if 0 <= b < width else width for _, b in pairs]
    exact = zip(pairs, counts, strict=True)
    shifted = [((a << count) % 2**width, (a >> count) % 2**width) for (a, _), count in exact]
    for got, wanted in zip((left, right), zip(*shifted, strict=True), strict=True):
        bits = np.array(wanted, np.uint64).astype(f"uint{width}").view(dtype)
        np.testing.assert_array_equal(got, bits)


def test_bools_are_equal_or_not() -> None:
    x = np.array([True, False, True, False] * 5)
    y = np.array([True, True, False, False] * 5)
    mod = module(
        lambda a, b: [relax.op.equal(a, b), relax.op.not_equal(a, b)],
        (x.shape, "bool"),
        (y.shape, "bool"),
    )
    equal, different = run(mod, x, y)
    np.testing.assert_array_equal(equal, x == y)
    np.testing.assert_array_equal(different, x != y)
