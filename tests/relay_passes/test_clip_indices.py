"""Indices from outside cannot reach foreign memory."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.clip_indices import clip_indices
from tests.relay_passes.graphs import GENERIC


@I.ir_module
class Before:
    @R.function
    def main(table: R.Tensor((5, 2), "float32"), ids: R.Tensor((3,), "int64")):
        with R.dataflow():
            gv = R.take(table, ids, axis=0, mode="fast")
            R.output(gv)
        return gv


@I.ir_module
class After:
    @R.function
    def main(table: R.Tensor((5, 2), "float32"), ids: R.Tensor((3,), "int64")):
        with R.dataflow():
            gv = R.take(table, ids, axis=0, mode="clip")
            R.output(gv)
        return gv


def test_fast_becomes_clip() -> None:
    assert_structural_equal(clip_indices()(Before), After)
    assert_structural_equal(clip_indices()(After), After)


def test_an_index_far_outside_reads_the_last_row() -> None:
    executable = tvm.compile(clip_indices()(Before), target=GENERIC)
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    ids = np.array([0, 4, 1 << 40])
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    result = main(tvm.runtime.tensor(table), tvm.runtime.tensor(ids)).numpy()
    np.testing.assert_array_equal(result, table[[0, 4, 4]])
