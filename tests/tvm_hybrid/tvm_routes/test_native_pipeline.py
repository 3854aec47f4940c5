"""The named pipeline gives TVM machine code, so that TVM's passes see none of our kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import IRModule, ir, relax, tirx

import tvm_hybrid
from relay_passes.lower.native_code import EXTERNAL, NOTHING
from tests.tvm_hybrid.small_models import mlp, mlp_module

X = np.random.default_rng(3).standard_normal((1, 16)).astype(np.float32)
KERNEL = "tvm_hybrid_matmul"


def lowered(**options: Any) -> IRModule:
    with tvm_hybrid.resolve_target(None):
        return relax.get_pipeline("tvm_hybrid", **options)(mlp_module())


def kernels(mod: IRModule) -> list[str]:
    """Names of a module's TIR functions."""
    return [str(g.name_hint) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]


def run(mod: IRModule) -> np.ndarray:
    executable = tvm.compile(mod, tvm_hybrid.resolve_target(None), relax_pipeline=None)
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(X)).numpy()


def test_kernels_are_machine_code() -> None:
    mod = lowered()
    assert kernels(mod) == [NOTHING]
    code, guard = mod.attrs[EXTERNAL]
    assert code.implements_function(KERNEL) and not guard.implements_function(KERNEL)
    assert f'R.call_packed("{KERNEL}"' in mod["main"].script()
    np.testing.assert_array_equal(run(mod), mlp().run(X)[0].numpy())


def test_they_can_stay_tir() -> None:
    mod = lowered(native=False, check_cpu=False)
    assert kernels(mod) == [KERNEL]
    assert EXTERNAL not in mod.attrs
    saved = tvm.ir.load_json(tvm.ir.save_json(mod))
    np.testing.assert_array_equal(run(saved), run(lowered()))


def test_modules_that_were_there_stay() -> None:
    parts = tvm_hybrid.partition_for_tvm_hybrid(mlp_module(), check_cpu=False)
    generated = relax.transform.RunCodegen()(parts)
    (region,) = generated.attrs[EXTERNAL]
    with tvm_hybrid.resolve_target(None):
        mod = relax.get_pipeline("tvm_hybrid")(generated)
    assert mod.attrs[EXTERNAL][0] == region
    np.testing.assert_array_equal(run(mod), run(lowered()))


def test_the_callers_context_is_that_of_kernels() -> None:
    def checks() -> int:
        code, _guard = lowered().attrs[EXTERNAL]
        return str(code.inspect_source("ll")).count("TypeError")

    with ir.transform.PassContext(config={"tirx.disable_assert": True}):
        without = checks()
    assert without < checks()


def test_a_program_without_kernels_needs_no_c_compiler() -> None:
    """An imported empty C source would have to be compiled before the program runs."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.Tuple([x, x])))
    target = tvm_hybrid.resolve_target(None)
    executable = tvm.compile(builder.get(), target, relax_pipeline="tvm_hybrid")
    assert [each.kind for each in executable.mod.imports] == ["llvm"] * 2
    array = np.ones((4, 4), np.float32)
    results = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(array))
    assert [each.numpy().sum() for each in results] == [16, 16]
