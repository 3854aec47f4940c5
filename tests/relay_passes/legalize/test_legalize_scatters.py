"""Scatters along an axis: a copy of the data, then rows of updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import IRModule, relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import legalize_operators, schedule_leftovers
from tests.relay_passes.graphs import compiled, module

op = relax.op
COMBINED = {
    "update": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
FAR = 1 << 40


def scattering(
    reduction: str,
    axis: int,
    data: Sequence[int],
    places: Sequence[int],
    dtype: str = "int32",
    is_dynamic: bool = False,
) -> IRModule:
    """The legalised operator, with all sizes static or all dynamic."""

    def of(name: str, sizes: Sequence[int]) -> list[int | tirx.Var]:
        names = [tirx.Var(f"{name}{n}", "int64") for n in range(len(sizes))]
        return list(names if is_dynamic else sizes)

    updated = of("m", places)
    return legalize_operators()(
        module(
            lambda x, i, u: op.scatter_elements(x, i, u, axis, reduction),
            (of("n", data), dtype), (updated, "int64"), (updated, dtype),
        )
    )  # fmt: skip


def expected(reduction: str, axis: int, x: NDArray, indices: NDArray, updates: NDArray) -> NDArray:
    """Applies one update after the other."""
    result = x.copy()
    for place in np.ndindex(indices.shape):
        at = list(place)
        number = int(indices[place])
        number += x.shape[axis] if number < 0 else 0
        at[axis] = min(max(number, 0), x.shape[axis] - 1)
        result[tuple(at)] = COMBINED[reduction](result[tuple(at)], updates[place])
    return result


def run(mod: IRModule, *arrays: NDArray) -> NDArray:
    return compiled(mod)(*map(tvm.runtime.tensor, arrays)).numpy()


SIZES = [
    ((7,), (9,)),
    ((1,), (3,)),
    ((4,), (0,)),
    ((5, 300), (6, 299)),
    ((2, 3, 4), (2, 5, 4)),
    ((3, 2, 3, 2), (2, 2, 3, 1)),
    ((2, 0), (1, 0)),
]


@pytest.mark.parametrize("reduction", COMBINED)
@pytest.mark.parametrize(("data", "places"), SIZES, ids=str)
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_values(
    reduction: str, data: tuple[int, ...], places: tuple[int, ...], is_dynamic: bool
) -> None:
    """Along every axis, with repeated, negative and out-of-range indices."""
    random = np.random.default_rng(len(data))
    for axis in range(len(data)):
        count = tuple(n if i == axis else min(n, data[i]) for i, n in enumerate(places))
        if data[axis] == 0 and 0 not in count:
            continue
        x = random.integers(-9, 9, data).astype(np.int32)
        updates = random.integers(-9, 9, count).astype(np.int32)
        indices = random.integers(-data[axis], max(1, data[axis]), count)
        indices[random.random(count) < 0.1] = random.choice([FAR, -FAR])
        mod = scattering(reduction, axis, data, count, is_dynamic=is_dynamic)
        wanted = expected(reduction, axis, x, indices, updates)
        np.testing.assert_array_equal(run(mod, x, indices, updates), wanted)


@pytest.mark.parametrize("reduction", ["min", "max"])
def test_a_nan_stays(reduction: str) -> None:
    nan, inf = np.nan, np.inf
    x = np.array([nan, 1, 1, -inf, inf, 2], np.float32)
    indices = np.array([0, 1, 1, 2, 3, 4, 5, 5])
    updates = np.array([1, nan, 2, 3, inf, -inf, 1, 3], np.float32)
    mod = scattering(reduction, 0, x.shape, indices.shape, "float32")
    with np.errstate(invalid="ignore"):
        wanted = expected(reduction, 0, x, indices, updates)
    assert np.isnan(wanted[:2]).all()
    np.testing.assert_array_equal(run(mod, x, indices, updates), wanted)


def test_columns_are_innermost() -> None:
    text = scattering("max", 0, (8, 640), (4, 640))["scatter_elements"].script()
    assert "for v in T.parallel(T.int64(3)):" in text
    assert "for v_1, v_2 in T.grid(T.int64(4), T.min(T.int64(256), " in text


def test_maxima_have_no_branches() -> None:
    mod = scattering("max", 0, (8, 64), (4, 64), "float32", is_dynamic=True)
    mod = schedule_leftovers(Machine("znver3", isa_named("avx2"), threads=1), [])(mod)
    text = mod["scatter_elements"].script()
    assert "llvm.maximum" not in text
    assert "T.parallel" not in text
