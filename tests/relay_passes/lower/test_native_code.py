"""Native code is compiled in groups: models of many kernels run, from memory and from a library."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_hybrid
from relay_passes.ir.stages import threads_for
from relay_passes.lower.native_code import FEW, GROUP
from relay_passes.lower.weights import OUTSIDE_BYTES
from relay_passes.lower_module import compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.targets.resolve import resolve_target

ROWS = 3
SIZES = (16, 17, 18, 19, 20, 21, 22, 23, 24, 25)  # every product has a kernel of its own
K = sum(SIZES)


def _weights() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    pairs = itertools.pairwise(SIZES)
    return [(rng.standard_normal(pair) / np.sqrt(pair[0])).astype(np.float32) for pair in pairs]


def _model() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, SIZES[0]), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            for weight in _weights():
                value = builder.emit(relax.op.matmul(value, relax.const(weight)))
                value = builder.emit(relax.op.nn.relu(value))
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return builder.get()


@pytest.fixture(scope="module")
def executable() -> tvm_hybrid.Executable:
    return tvm_hybrid.compile(_model(), num_threads=1, fusion="fine")


def _check(executable: tvm_hybrid.Executable) -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, SIZES[0])).astype(np.float32)
    (result,) = executable.run(x)
    expected, bound = x.astype(np.float64), np.abs(x.astype(np.float64))
    for weight in _weights():
        expected = np.maximum(expected @ weight, 0)
        bound = bound @ np.abs(weight)
    # Every sum of k products has a relative error of at most k * 2**-24 of the sum of absolute
    # values (Higham 2002, 3.1), and layers pass it on by the absolute values of their weights.
    assert np.all(np.abs(result.numpy() - expected) <= K * 2.0**-24 * bound)
    assert np.abs(expected).max() > 0.01


def test_many_kernels_are_several_modules_that_run(executable: tvm_hybrid.Executable) -> None:
    imports = executable.program().module.imports
    kernels = [str(name) for each in imports for name in each.get_function("get_func_names")()]
    assert FEW < len(kernels) == len(set(kernels)) == len(SIZES) - 1
    assert [each.kind for each in imports] == ["llvm"] * -(-len(kernels) // GROUP)
    _check(executable)


def test_kernels_that_all_have_exact_buffers_run() -> None:
    """Kernels with exact buffers are compiled separately; this model has no others."""
    build = OnnxBuilder(24)
    past, new = build.input("past", [2, 4, 8]), build.input("new", [2, 1, 8])
    build.output(build.node("TensorScatter", past, new), [2, 4, 8])
    model = build.model()
    model.ir_version = 10
    executable = tvm_hybrid.compile(model, num_threads=1)
    assert "row_update" in [node.kernel for node in executable.explain()]
    feeds = {"past": np.zeros((2, 4, 8), np.float32), "new": np.ones((2, 1, 8), np.float32)}
    (result,) = executable.run(feeds)
    assert result.numpy()[:, 0].all() and not result.numpy()[:, 1:].any()


def test_a_library_holds_them_all(executable: tvm_hybrid.Executable, tmp_path: Path) -> None:
    loaded = tvm_hybrid.load(executable.export(tmp_path / "many.so"))
    _check(loaded)


def test_threads_are_no_more_than_cpus_or_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    assert threads_for(5) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert (threads_for(5), threads_for(9)) == (5, 8)


def test_a_failure_in_a_group_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    build = tvm.tirx.build

    def fail(module: tvm.IRModule, **rest: Any) -> Any:
        names = [str(gvar.name_hint) for gvar in module.get_global_vars()]
        if "tvm_hybrid_matmul" in names:  # the model's function, which TVM builds itself
            return build(module, **rest)
        raise ValueError("no code for this group")

    monkeypatch.setattr(tvm.tirx, "build", fail)
    with pytest.raises(tvm_hybrid.errors.CompileError, match="no code for this group"):
        tvm_hybrid.compile(_model(), num_threads=1, fusion="fine")


def test_large_weights_are_only_in_what_runs() -> None:
    """TVM hashes the contents of an executable; a kept program holds no large weights."""
    weight = np.eye(256, dtype=np.float32)
    assert weight.nbytes >= OUTSIDE_BYTES
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, 256), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.matmul(x, relax.const(weight)))
        builder.emit_func_output(output)
    compiled = compile_module(builder.get(), PipelineOptions(resolve_target(None)))
    assert "[65536]" not in compiled.native.stats()
    assert "[65536]" in compiled.executable.stats()
    given = np.arange(ROWS * 256, dtype=np.float32).reshape(ROWS, 256)
    result = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"](tvm.runtime.tensor(given))
    np.testing.assert_array_equal(result.numpy(), given)
