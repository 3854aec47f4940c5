"""argmax and argmin: two vectorised reductions along either axis, static and dynamic sizes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import IRModule, ir, relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.legalize.axes import reduction_identities
from relay_passes.legalize.schedule_generic import legalize_operators, schedule_leftovers
from tests.relay_passes.graphs import compiled, module

op = relax.op
N, M = (tirx.Var(name, "int64") for name in "nm")
MEANINGS = {"argmax": np.argmax, "argmin": np.argmin}


def scheduled(name: str, shape: tuple, axis: int | None, dtype: str, noted: list) -> IRModule:
    passes = [
        legalize_operators(),
        reduction_identities(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        schedule_leftovers(Machine("znver4", isa_named("avx2")), noted),
    ]
    body = getattr(op, name)
    return ir.transform.Sequential(passes)(module(lambda x: body(x, axis), (shape, dtype)))


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Few different values, so that many are equal; rows and columns of one value, and with NaN."""
    rng = np.random.default_rng(shape)
    x = rng.integers(1 if dtype[0] == "u" else -2, 3, shape).astype(dtype)
    if dtype[0] == "f" and x.size:
        x[0], x[-1] = -np.inf, np.inf
        x[rng.random(shape) < 0.02] = np.nan
    return x


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8", "int64"])
def test_dynamic_sizes(name: str, axis: int | None, dtype: str) -> None:
    noted: list = []
    run = compiled(scheduled(name, (N, M), axis, dtype, noted))
    assert [each.kernel for each in noted] == ["generic_reduction"]
    for sizes in ((1, 1), (2, 7), (70, 33), (9, 133)):
        x = values(sizes, dtype)
        found = run(tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(found, MEANINGS[name](x, axis=axis))
    if axis is not None:
        sizes = (4, 0) if axis == 0 else (0, 4)
        assert run(tvm.runtime.tensor(np.zeros(sizes, dtype))).numpy().shape == (0,)
        # The place in an empty axis must be valid for its readers.
        assert not run(tvm.runtime.tensor(np.zeros(sizes[::-1], dtype))).numpy().any()


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("axis", [0, 1])
def test_known_sizes_read_neighbours(name: str, axis: int) -> None:
    noted: list = []
    mod = scheduled(name, (70, 133), axis, "float32", noted)
    assert [each.kernel for each in noted] == ["generic_reduction"]
    text = mod[name].script()
    row, lane = (("v_k0", "(columns * T.int64(32) + i)"), ("v_i0", "(i * T.int64(32) + i_1)"))[axis]
    assert f"x0_flat[{row} * T.int64(133) + {lane}]" in text
    x = values((70, 133), "float32")
    found = compiled(mod)(tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(found, MEANINGS[name](x, axis=axis))
