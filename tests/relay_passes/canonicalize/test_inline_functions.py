"""Only private functions that take weights are inlined."""

from __future__ import annotations

import numpy as np
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.canonicalize.functions import inline_functions


@I.ir_module
class Nested:
    @R.function(private=True)
    def inner(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (2, 4), "float32"
    ):
        with R.dataflow():
            gv = R.matmul(x, w)
            R.output(gv)
        return gv

    @R.function(private=True)
    def outer(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (2, 4), "float32"
    ):
        cls = Nested
        with R.dataflow():
            lv = cls.inner(x, w)
            gv = R.nn.relu(lv)
            R.output(gv)
        return gv

    @R.function
    def main(
        x: R.Tensor((2, 4), "float32"),
        w: R.Tensor((4, 4), "float32"),
        v: R.Tensor((4, 4), "float32"),
    ) -> R.Tensor((2, 4), "float32"):
        cls = Nested
        with R.dataflow():
            lv = cls.outer(x, w)
            gv = cls.inner(lv, v)
            R.output(gv)
        return gv


@I.ir_module
class Flat:
    @R.function
    def main(
        x: R.Tensor((2, 4), "float32"),
        w: R.Tensor((4, 4), "float32"),
        v: R.Tensor((4, 4), "float32"),
    ) -> R.Tensor((2, 4), "float32"):
        with R.dataflow():
            lv = R.nn.relu(R.matmul(x, w))
            gv = R.matmul(lv, v)
            R.output(gv)
        return gv


def bound(mod: IRModule) -> IRModule:
    weights = {name: np.full((4, 4), i, np.float32) for i, name in enumerate("wv")}
    return relax.transform.BindParams("main", weights)(mod)


def test_functions_in_functions() -> None:
    assert_structural_equal(inline_functions()(bound(Nested)), bound(Flat))


def test_functions_without_weights_stay() -> None:
    assert inline_functions()(Nested).same_as(Nested)
