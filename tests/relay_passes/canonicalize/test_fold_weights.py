"""Constants are permuted, reshaped and cast at compile time."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.canonicalize.constants import fold_weights
from tests.relay_passes.graphs import module

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_a_transposed_weight_becomes_a_constant() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((3, 4), "float32")):
            with R.dataflow():
                transposed = R.permute_dims(w, axes=[1, 0])
                gv = R.matmul(x, transposed)
                R.output(gv)
            return gv

    @I.ir_module
    class After:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 3), "float32")):
            with R.dataflow():
                gv = R.matmul(x, w)
                R.output(gv)
            return gv

    before = relax.transform.BindParams("main", {"w": WEIGHT})(Before)
    after = relax.transform.BindParams("main", {"w": np.ascontiguousarray(WEIGHT.T)})(After)
    assert_structural_equal(fold_weights()(before), after)


def test_a_chain_of_views_and_a_cast_is_folded_to_the_end() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((6, 2), "float32"), w: R.Tensor((3, 4), "float32")):
            with R.dataflow():
                half = R.astype(w, "float16")
                whole = R.astype(half, "float32")
                flat = R.reshape(whole, (6, 2))
                gv = R.add(x, flat)
                R.output(gv)
            return gv

    @I.ir_module
    class After:
        @R.function
        def main(x: R.Tensor((6, 2), "float32"), w: R.Tensor((6, 2), "float32")):
            with R.dataflow():
                gv = R.add(x, w)
                R.output(gv)
            return gv

    before = relax.transform.BindParams("main", {"w": WEIGHT})(Before)
    after = relax.transform.BindParams("main", {"w": WEIGHT.reshape(6, 2)})(After)
    assert_structural_equal(fold_weights()(before), after)


def test_a_number_that_is_cast_keeps_its_shape() -> None:
    wide, narrow = relax.const(np.array(3, np.int64)), relax.const(np.array(3, np.int32))
    before = module(lambda x: relax.op.add(x, relax.op.astype(wide, "int32")), ((2,), "int32"))
    after = module(lambda x: relax.op.add(x, narrow), ((2,), "int32"))
    assert_structural_equal(fold_weights()(before), after)


def test_what_depends_on_an_input_stays() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 4), "float32")):
            with R.dataflow():
                gv = R.permute_dims(x, axes=[1, 0])
                R.output(gv)
            return gv

    assert_structural_equal(fold_weights()(Before), Before)


def test_a_module_with_nothing_to_fold_stays() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 4), "float32"), w: R.Tensor((3, 4), "int8")):
            with R.dataflow():
                wide = R.astype(w, "float32")
                turned = R.permute_dims(wide, axes=[1, 0])
                gv = R.matmul(x, turned)
                R.output(gv)
            return gv

    before = relax.transform.BindParams("main", {"w": WEIGHT.astype(np.int8)})(Before)
    assert fold_weights()(before).same_as(before)
