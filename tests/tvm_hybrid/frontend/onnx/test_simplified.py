"""Sizes of any form are compared and simplified correctly: an error would give a wrong shape."""

from __future__ import annotations

import itertools

import pytest
from tvm import tirx
from tvm.tirx import Min, floordiv

from tir_schedules.generic.expressions import substitute
from tvm_hybrid.frontend.expressions import Expr
from tvm_hybrid.frontend.onnx.graph.sizes import holds, index, same_size, simplified

N, M = (tirx.Var(name, "int64") for name in "nm")


def value(size: Expr, n: int, m: int) -> int:
    return int(simplified(substitute(size, {N: index(n), M: index(m)})))


@pytest.mark.parametrize(
    "size",
    [
        Min(floordiv(N, 256) + 1, floordiv(N + 1152, 256)),
        Min(floordiv(N, 256) + 7, floordiv(N + 1152, 256)),
        Min(floordiv(N + 255, 256), floordiv(N + 300, 256)),
        Min(N + 300, M),
        floordiv(N + M + 512, 256),
        floordiv(N * 3 + 300, 256) - floordiv(N * 3, 256),
        floordiv(N - 300, 256),
        floordiv(N + 300, -256),
    ],
    ids=str,
)
def test_a_simpler_size_is_the_same_number(size: Expr) -> None:
    found = simplified(size)
    for n, m in itertools.product(
        (0, 1, 127, 128, 211, 212, 255, 256, 767, 768, 5000), (0, 1, 700)
    ):
        assert value(found, n, m) == value(size, n, m), f"{size} at {n}, {m} as {found}"


def test_the_lesser_of_two_sizes_that_are_known_to_differ() -> None:
    """Frame counts of a padded signal: 256 samples a frame, without three frames."""
    frames = floordiv(N, 256)
    assert same_size(simplified(Min(frames, floordiv(N + 1152, 256) - 3)), frames)
    assert same_size(simplified(Min(floordiv(N + 1152, 256) - 3, frames)), frames)
    assert holds(floordiv(N + 1152, 256) >= frames + 4)
    assert not holds(floordiv(N + 1152, 256) >= frames + 5)
    assert isinstance(simplified(Min(floordiv(N, 2), floordiv(N + 7, 3))), Min)
