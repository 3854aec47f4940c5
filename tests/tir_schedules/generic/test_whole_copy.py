"""Copies to other shapes with dynamic sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.schedule_generic import schedule_leftovers
from tests.relay_passes.graphs import compiled
from tests.tir_schedules.generic.test_dynamic_reductions import function_of, lowered
from tir_schedules.generic.nest import NotHandledError
from tir_schedules.generic.schedule import whole_copy

op = relax.op
N, M = (tirx.Var(name, "int64") for name in "nm")


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize("threads", [1, 3])
def test_values(dtype: str, threads: int) -> None:
    mod = lowered(lambda x: op.reshape(x, (M, 1, N, 6)), (N, M, 2, 3), dtype)
    machine = Machine("znver4", isa_named("avx2"), threads)
    noted: list = []
    run = compiled(schedule_leftovers(machine, noted)(mod))
    assert [each.kernel for each in noted] == ["generic_injective"]
    for n, m in ((2, 3), (1, 1), (0, 4), (7, 11)):
        x = np.random.default_rng(0).integers(0, 2, (n, m, 2, 3)).astype(dtype)
        result = run(tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(result, x.reshape(m, 1, n, 6))


@pytest.mark.parametrize(
    ("body", "shape", "reason"),
    [
        (lambda x: op.reshape(x, (6, 4)), (4, 6), "all sizes are static"),
        (op.tanh, (N, M), "it does more than copy"),
        (op.permute_dims, (N, M), "it does more than copy"),
    ],
)
def test_what_is_left(body, shape, reason: str) -> None:
    with pytest.raises(NotHandledError, match=reason):
        whole_copy(function_of(body, shape), Machine("znver4", isa_named("avx2")))
