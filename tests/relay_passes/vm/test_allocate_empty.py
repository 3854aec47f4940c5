"""Tensors without elements are allocated, not constants of the program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.vm.memory import allocate_empty
from tests.relay_passes.graphs import GENERIC


def returning(*values: np.ndarray) -> tvm.IRModule:
    """main() -> a tuple of constants."""
    builder = relax.BlockBuilder()
    with builder.function("main", [], attrs={"relax.force_pure": True}):
        constants = [relax.const(tvm.runtime.tensor(value)) for value in values]
        builder.emit_func_output(builder.emit(relax.Tuple(constants)))
    return builder.get()


@I.ir_module
class After:
    @R.function
    def main():
        R.func_attr({"relax.force_pure": True})
        empty = R.builtin.alloc_tensor(R.shape([2, 0]), "float32", 0)
        lv = (empty, R.const(1, "int64"))
        return lv


def test_only_what_has_no_elements_is_allocated() -> None:
    before = returning(np.zeros((2, 0), np.float32), np.array(1))
    assert_structural_equal(allocate_empty()(before), After)
    assert_structural_equal(allocate_empty()(After), After)


def test_a_library_with_nothing_but_an_empty_tensor_loads(tmp_path: Path) -> None:
    """Once TVM can load such a constant, the pass can go."""
    mod = allocate_empty()(returning(np.zeros((2, 0), np.float32)))
    path = tmp_path / "m.so"
    tvm.compile(mod, target=GENERIC).export_library(str(path))
    main = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]
    assert main()[0].numpy().shape == (2, 0)
