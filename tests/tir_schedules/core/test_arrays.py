"""Steps of a layout give equal results on Relax expressions and on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.relay_passes.graphs import module, run
from tir_schedules.core import arrays

STEPS: dict[str, Callable[[Any], Any]] = {
    "reshaped": lambda x: arrays.reshaped(x, (4, 6)),
    "permuted": lambda x: arrays.permuted(x, (1, 2, 0)),
    "permuted, long runs": lambda x: arrays.permuted(x, (0, 2, 1)),
    "padded": lambda x: arrays.padded(x, (1, 0, 3)),
    "sliced": lambda x: arrays.sliced(x, 2, 1, 3),
    "chosen": lambda x: arrays.chosen(x, 1, [2, 0, 2]),
    "joined": lambda x: arrays.joined([arrays.sliced(x, 2, 0, 1), x]),
    "one part joined": lambda x: arrays.joined([x]),
    "product": lambda x: arrays.product(np.arange(6).reshape(2, 3), arrays.as_type(x, "float64")),
    "words": lambda x: arrays.as_bytes(x, 24, "int8"),
    "halves of words": lambda x: arrays.as_bytes(x, 24, "int8", 2),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step(name: str) -> None:
    array = np.arange(-12, 12, dtype=np.int32).reshape(2, 3, 4) * 300
    wanted = STEPS[name](array)

    def body(x: relax.Expr) -> relax.Expr:
        return STEPS[name](x)

    (found,) = run(module(body, ((2, 3, 4), "int32")), [array])
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype
