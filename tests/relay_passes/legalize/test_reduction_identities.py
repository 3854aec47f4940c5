"""Maxima of floats start with -inf, and their padding is -inf."""

from __future__ import annotations

from tvm import IRModule
from tvm.ir import assert_structural_equal
from tvm.script import tirx as T

from relay_passes.legalize.axes import reduction_identities


@T.prim_func(private=True, s_tir=True)
def before(x: T.Buffer((8,), "float32"), y: T.Buffer((4,), "float32")):  # type: ignore[no-untyped-def]
    padded = T.sblock_alloc_buffer((9,), "float32")
    for i in range(9):
        with T.sblock("padded"):
            v = T.axis.spatial(9, i)
            padded[v] = T.if_then_else(v < 8, x[v], T.min_value("float32"))
    for i, k in T.grid(4, 2):
        with T.sblock("most"):
            v, w = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = T.min_value("float32")
            y[v] = T.max(y[v], padded[v * 2 + w])


@T.prim_func(private=True, s_tir=True)
def after(x: T.Buffer((8,), "float32"), y: T.Buffer((4,), "float32")):  # type: ignore[no-untyped-def]
    padded = T.sblock_alloc_buffer((9,), "float32")
    for i in range(9):
        with T.sblock("padded"):
            v = T.axis.spatial(9, i)
            padded[v] = T.if_then_else(v < 8, x[v], T.float32("-inf"))
    for i, k in T.grid(4, 2):
        with T.sblock("most"):
            v, w = T.axis.remap("SR", [i, k])
            with T.init():
                y[v] = T.float32("-inf")
            y[v] = T.max(y[v], padded[v * 2 + w])


def test_a_maximum_and_its_padding_begin_with_the_identity() -> None:
    mended = reduction_identities()(IRModule({"main": before}))
    assert_structural_equal(mended["main"], after)


def test_other_functions_stay() -> None:
    mod = IRModule({"main": after})
    assert_structural_equal(reduction_identities()(mod), mod)
