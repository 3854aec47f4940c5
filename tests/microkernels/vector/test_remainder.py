"""The remainder of floats has the bits of the C library's, with a branch for large quotients."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm.tirx.script.builder.ir as I
from numpy.typing import NDArray
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.vector.expressions import ramp
from microkernels.vector.remainder import fmod

COUNT = 2**15
SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -3e-45, 3.4028235e38, 1.1754944e-38, 2.5]


def _program(lanes: int) -> tirx.PrimFunc:
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"global_symbol": "main", **NO_ALIAS})
        x, y, z = (I.arg(name, I.buffer((COUNT,), "float32")) for name in "xyz")
        with I.serial(COUNT // lanes) as i:
            index = ramp(i * lanes, lanes)
            I.buffer_store(z, fmod(x[index], y[index]), [index])
    return builder.get()


def _pairs() -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    rng = np.random.default_rng(0)
    any_bits = [rng.integers(0, 2**32, COUNT, dtype=np.uint32).view(np.float32) for _ in range(2)]
    whole = rng.integers(-(2**24), 2**24, COUNT).astype(np.float32)
    divisors = rng.integers(-300, 300, COUNT).astype(np.float32)
    with np.errstate(all="ignore"):  # multiples, with quotients on both sides of 2^27
        multiples = (whole * divisors * np.float32(2) ** rng.integers(0, 30, COUNT)).astype("f4")
    special = np.array(SPECIAL, np.float32)
    rows = np.resize(np.repeat(special, len(special)), COUNT)
    columns = np.resize(np.tile(special, len(special)), COUNT)
    denormal = rng.integers(0, 2**23, COUNT, dtype=np.uint32).view(np.float32)
    return [
        (any_bits[0], any_bits[1]),
        (whole, divisors),
        (multiples, divisors),
        (rows, columns),
        (any_bits[0], denormal),
    ]


@pytest.mark.parametrize(("mcpu", "lanes"), [("haswell", 8), ("haswell", 1), ("x86-64", 4)])
def test_the_bits_of_the_c_library(mcpu: str, lanes: int) -> None:
    kernel = tvm.compile(_program(lanes), target={"kind": "llvm", "mcpu": mcpu})
    for x, y in _pairs():
        z = tvm.runtime.empty(x.shape, "float32")
        kernel(tvm.runtime.tensor(x), tvm.runtime.tensor(y), z)
        with np.errstate(all="ignore"):
            wanted = np.fmod(x, y)
        got = np.asarray(z.numpy())
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        known = ~np.isnan(wanted)
        np.testing.assert_array_equal(got.view(np.uint32)[known], wanted.view(np.uint32)[known])
