"""Memory of dynamic sizes is allocated in powers of two."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.graph import op_name
from relay_passes.vm.memory import SMALLEST, power_of_two, size_classes
from tests.relay_passes.graphs import GENERIC


def allocating(size: tirx.Expr | int) -> tvm.IRModule:
    """main(shape) -> a tensor of [size, 3] floats."""
    builder = relax.BlockBuilder()
    shape = relax.Var("shape", relax.ShapeType([size]))
    with builder.function("main", [shape], attrs={"relax.force_pure": True}):
        call = relax.op.builtin.alloc_tensor(relax.ShapeExpr([size, 3]), "float32", 0)
        builder.emit_func_output(builder.emit(call))
    return relax.transform.LowerAllocTensor()(builder.get())


def bytes_of(mod: tvm.IRModule) -> tirx.Expr:
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    (call,) = (each for each in values if op_name(each) == "relax.memory.alloc_storage")
    (size,) = call.args[0].values
    return size


def test_known_sizes_stay() -> None:
    mod = allocating(8)
    assert int(bytes_of(size_classes()(mod))) == int(bytes_of(mod)) == 96


def test_dynamic_sizes_are_rounded_up() -> None:
    mod = allocating(tirx.Var("n", "int64"))
    assert_structural_equal(bytes_of(size_classes()(mod)), power_of_two(bytes_of(mod)))


def test_classes_are_powers_of_two() -> None:
    sizes = [0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 1, 2**20, 2**20 + 1, 2**33 - 1, 2**40]
    x = te.placeholder((len(sizes),), "int64", "x")
    y = te.compute(x.shape, lambda i: power_of_two(x[i]), "y")
    kernel = tvm.compile(te.create_prim_func([x, y]), target=GENERIC)
    result = tvm.runtime.tensor(np.zeros(len(sizes), np.int64))
    kernel(tvm.runtime.tensor(np.array(sizes, np.int64)), result)
    expected = [1 << (max(size, SMALLEST) - 1).bit_length() for size in sizes]
    assert result.numpy().tolist() == expected
