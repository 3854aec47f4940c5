"""Caches of fixed size that get new rows: the bits of numpy, in place or copied."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.guard import guarded
from tests.stand_ins import running
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH
from tests.tir_schedules.run_region import ISAS, highest_native
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.rows.row_update import ALONE_BYTES, build_row_update
from tvm_hybrid.runtime.feeds import tensor_of

ROOM = SymbolicSize.of("room")
PAST = SymbolicSize.of("past")


class Update:
    """The kernel for [batch, heads, rows, columns] of some type."""

    def __init__(
        self, dtype: str, heads: int, columns: int, past: int | None = ROOM, threads: int = 1
    ) -> None:
        self.dtype, self.heads, self.columns = np.dtype(dtype), heads, columns

        def rows(count: int) -> Tensor:
            return Tensor((BATCH, heads, count, columns), dtype)

        function = build_row_update(
            None if past is None else rows(past),
            rows(LENGTH),
            Tensor((BATCH, 1), "int64"),
            rows(ROOM),
            threads,
        )
        named = function.with_attr("global_symbol", "kernel")
        self.kernel = running.compiled(named, highest_native(ISAS))["kernel"]
        self.has_past = past is not None

    def random(self, batch: int, rows: int) -> np.ndarray:
        shape = (batch, self.heads, rows, self.columns)
        return np.random.default_rng(rows).integers(-99, 99, shape).astype(self.dtype)

    def expected(
        self, past: np.ndarray, new: np.ndarray, before: list[int], room: int
    ) -> np.ndarray:
        out = np.zeros((len(before), self.heads, room, self.columns), self.dtype)
        out[:, :, : past.shape[2]] = past[:, :, :room]
        for b, start in enumerate(before):
            for j in range(new.shape[2]):
                if 0 <= start + j < room:
                    out[b, :, start + j] = new[b, :, j]
        return out

    def check(self, before: list[int], new: int, room: int, past: int | None = None) -> None:
        batch, past = len(before), (room if past is None else past) if self.has_past else 0
        old, rows = self.random(batch, past), self.random(batch, new)
        out = guarded(np.empty((batch, self.heads, room, self.columns), self.dtype))
        given = [guarded(old)] if self.has_past else []
        given += [guarded(rows), guarded(np.array(before, np.int64)[:, None])]
        self.kernel(*map(tensor_of, (*given, out)))
        np.testing.assert_array_equal(out, self.expected(old, rows, before, room))


CASES = [([0], 3, 8), ([2, 5], 1, 8), ([7, 0, 4], 2, 9), ([8], 2, 8), ([-1, -9], 2, 8)]


@pytest.mark.parametrize(
    ("dtype", "heads", "columns"), [("float32", 2, 16), ("float16", 3, 20), ("int8", 1, 7)]
)
def test_new_rows_stand_where_each_sequence_ends(dtype: str, heads: int, columns: int) -> None:
    kernel = Update(dtype, heads, columns)
    for before, new, room in CASES:
        kernel.check(before, new, room)


def test_places_far_outside_are_none() -> None:
    kernel = Update("float32", 2, 16)
    kernel.check([2**40, -(2**40), 3], 2, 8)


def test_a_past_of_other_length_and_none() -> None:
    longer = Update("float32", 2, 16, PAST)
    for past in (0, 3, 12):
        longer.check([3, 1], 2, 8, past)
    Update("float32", 2, 16, None).check([0, 2], 5, 8)


def test_threads_share_heads() -> None:
    kernel = Update("float32", 3, 64, threads=4)
    assert 4 * 3 * 200 * 64 * math.prod((4,)) > ALONE_BYTES
    kernel.check([100, 7, 0, 198], 2, 200)


@pytest.mark.parametrize("heads", [1, 3])
def test_in_place_nothing_but_new_rows_is_written(heads: int) -> None:
    kernel = Update("float32", heads, 16)
    cache = kernel.random(2, 20)
    view, rows = cache[:, :, :12], kernel.random(2, 3)
    expected = kernel.expected(view.copy(), rows, [4, 10], 12)
    beyond = cache[:, :, 12:].copy()
    kernel.kernel(*map(tensor_of, (view, rows, np.array([[4], [10]]), view)))
    np.testing.assert_array_equal(view, expected)
    np.testing.assert_array_equal(cache[:, :, 12:], beyond)
