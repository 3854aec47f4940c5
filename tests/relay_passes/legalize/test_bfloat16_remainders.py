"""Remainders of bfloat16 numbers, which kernels in a user's module may compute."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal
from tvm.script import tirx as T

import tvm_hybrid
from relay_passes.legalize.numbers import bfloat16_remainders
from tests.relay_passes.graphs import module
from tests.relay_passes.lift.test_lift_programs import legalized

op = relax.op


@T.prim_func(private=True, s_tir=True)
def before(x: T.Buffer((8,), "bfloat16"), y: T.Buffer((8,), "bfloat16")):  # type: ignore[no-untyped-def]
    for i in range(8):
        with T.sblock("rest"):
            v = T.axis.spatial(8, i)
            y[v] = T.truncmod(T.truncmod(x[v], x[7 - v]), T.bfloat16(1.5))


@T.prim_func(private=True, s_tir=True)
def after(x: T.Buffer((8,), "bfloat16"), y: T.Buffer((8,), "bfloat16")):  # type: ignore[no-untyped-def]
    for i in range(8):
        with T.sblock("rest"):
            v = T.axis.spatial(8, i)
            y[v] = T.Cast(
                "bfloat16",
                T.truncmod(
                    T.Cast(
                        "float32",
                        T.Cast(
                            "bfloat16",
                            T.truncmod(T.Cast("float32", x[v]), T.Cast("float32", x[7 - v])),
                        ),
                    ),
                    T.float32(1.5),
                ),
            )


def test_remainders_are_computed_in_float32() -> None:
    mended = bfloat16_remainders()(IRModule({"main": before}))
    assert_structural_equal(mended["main"], after)


def test_other_functions_stay() -> None:
    mod = IRModule({"main": after})
    assert_structural_equal(bfloat16_remainders()(mod), mod)


def test_a_legalised_remainder_is_exact() -> None:
    """The remainder follows a cast from float16, as a random graph had it."""

    def body(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return op.mod(op.maximum(op.astype(x, "bfloat16"), y), relax.const(1.5, "bfloat16"))

    mod = legalized(module(body, ((3, 4, 7), "float16"), ((3, 4, 7), "bfloat16")))
    x = np.random.default_rng(0).standard_normal((3, 4, 7)).astype(np.float16) * 8
    y = (x * 2 + 1).astype(ml_dtypes.bfloat16)
    executable = tvm_hybrid.compile(mod, num_threads=1)
    (found,) = executable.run(x, y)
    largest = np.maximum(x.astype(ml_dtypes.bfloat16), y).astype(np.float32)
    np.testing.assert_array_equal(found.numpy().astype(np.float32), np.fmod(largest, 1.5))
