"""Cumulative sums and products have rows in the innermost loop."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relay_passes.legalize.schedule_generic import legalize_operators
from tests.relay_passes.graphs import compiled, module

op = relax.op
N, M = (tirx.Var(name, "int64") for name in "nm")


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 2, 7), (2, 0, 3), (0, 4, 2)])
def test_values(axis: int, exclusive: bool, sizes: tuple[int, ...]) -> None:
    mod = module(lambda x: op.cumsum(x, axis, exclusive=exclusive), ((N, M, sizes[2]), "int32"))
    x = np.random.default_rng(0).integers(-9, 9, sizes).astype(np.int32)
    wanted = x.cumsum(axis, dtype=np.int32)
    if exclusive:
        wanted -= x
    result = compiled(legalize_operators()(mod))(tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(result, wanted)


def test_products_of_another_type() -> None:
    mod = module(lambda x: op.cumprod(x, 0, dtype="int64"), ((4, 3), "int32"))
    x = np.arange(1, 13, dtype=np.int32).reshape(4, 3)
    result = compiled(legalize_operators()(mod))(tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(result, x.cumprod(0, dtype=np.int64))


def test_neighbours_are_innermost() -> None:
    mod = legalize_operators()(module(lambda x: op.cumsum(x, 0), ((8, 16), "float32")))
    text = mod["cumsum"].script()
    assert "for v, v_1 in T.grid(T.int64(7), T.int64(16))" in text
    assert "[v + T.int64(1), v_1] = " in text


@pytest.mark.parametrize("form", [{"axis": None}, {"axis": 0, "dtype": "bool"}])
def test_what_is_left_to_tvm(form: dict) -> None:
    mod = module(lambda x: op.cumsum(x, **form), ((4, 3), "bool" if "dtype" in form else "int32"))
    assert "scan" not in legalize_operators()(mod).script()
