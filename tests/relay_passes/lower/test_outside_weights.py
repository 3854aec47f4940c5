"""Functions fetch large constants from outside."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from microkernels.base.tvm_compat.relax import virtual_machine_code
from relay_passes.ir.constants import constants_of
from relay_passes.lower.weights import with_outside_weights

NAME = "tvm_hybrid.test_outside_weights"
LARGE = np.arange(16, dtype=np.float32)
SMALL = np.arange(2, dtype=np.float32)


def branching(constants: list[relax.Expr]) -> IRModule:
    """condition -> (one, small) or (other, small); a second function returns the large ones."""
    one, small, other = constants
    condition = relax.Var("condition", relax.TensorType((), "bool"))
    builder = relax.BlockBuilder()
    with builder.function("main", [condition], pure=False):
        given = [
            relax.SeqExpr([], relax.Tuple([builder.normalize(each), small]))
            for each in (one, other)
        ]
        builder.emit_func_output(builder.emit(relax.If(condition, *given)))
    with builder.function("both", [], pure=False):
        builder.emit_func_output(builder.emit(relax.Tuple([other, one, other])))
    return relax.transform.AttachGlobalSymbol()(builder.get())


def test_functions_and_branches_ask_for_large_constants() -> None:
    constants = [relax.const(LARGE), relax.const(SMALL), relax.const(LARGE + 1)]
    mod = branching(constants)
    before = IRModule(dict(mod.functions_items()))
    outside, weights = with_outside_weights(mod, NAME, LARGE.nbytes)
    assert_structural_equal(mod, before)
    assert [each.value for each in constants_of(outside)] == [constants[1].value]
    assert {each.data_ptr() for each in weights} == {
        constants[place].value.data_ptr() for place in (0, 2)
    }
    tvm_ffi.register_global_func(NAME, lambda number: weights[number], override=True)
    code = virtual_machine_code(outside)
    machine = relax.VirtualMachine(code, tvm.cpu())
    for answer, wanted in ((True, LARGE), (False, LARGE + 1)):
        large, small = machine["main"](tvm.runtime.tensor(np.array(answer)))
        np.testing.assert_array_equal(large.numpy(), wanted)
        np.testing.assert_array_equal(small.numpy(), SMALL)
    for found, add in zip(machine["both"](), (1, 0, 1), strict=True):
        np.testing.assert_array_equal(found.numpy(), LARGE + add)
    tvm_ffi.registry.remove_global_func(NAME)


def test_without_large_constants_nothing_changes() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, relax.const(SMALL))))
    mod = builder.get()
    outside, weights = with_outside_weights(mod, NAME, LARGE.nbytes)
    assert not weights
    assert_structural_equal(outside, mod)
