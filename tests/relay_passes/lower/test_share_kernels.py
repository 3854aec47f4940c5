"""Kernels that differ only in numbers become one; results do not change by a bit."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relay_passes import pipeline
from relay_passes.lower import kernel_sharing as kernel_families
from relay_passes.lower_module import CompiledModule, compile_module
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.kernel_numbers import numbers_as_parameter, numbers_of, without_numbers
from tvm_hybrid.runtime.feeds import tensor_of
from tvm_hybrid.targets.resolve import resolve_target

ROWS, SIZE = 5, 32


def _layers(numbers: list[tuple[float, float]]) -> tvm.IRModule:
    """x -> relu(tanh(x @ w) * a + b) for every pair of numbers, each with its own weight."""
    builder, rng = relax.BlockBuilder(), np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((ROWS, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            for scale, shift in numbers:
                weight = relax.const(rng.standard_normal((SIZE, SIZE)).astype(np.float32))
                value = builder.emit(relax.op.matmul(value, weight))
                value = builder.emit(relax.op.tanh(value))
                value = builder.emit(relax.op.multiply(value, relax.const(scale)))
                value = builder.emit(relax.op.add(value, relax.const(shift)))
                value = builder.emit(relax.op.nn.relu(value))  # keeps numbers out of weights
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return builder.get()


def _kernels(mod: tvm.IRModule) -> list[str]:
    return [str(g.name_hint) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]


def _run(compiled: CompiledModule, x: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def test_kernels_that_differ_in_numbers_are_one_and_compute_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = PipelineOptions(resolve_target(None), fusion="fine")
    mod = _layers([(0.5, 0.25), (0.3, 0.0), (0.7, -0.0), (-0.1, 0.5)])
    monkeypatch.setattr(kernel_families, "MOST_VAIN", 0)  # so that lower_regions shares no kernel
    shared = compile_module(mod, options)
    identity = tvm.ir.transform.Sequential([])
    monkeypatch.setattr(pipeline, "share_kernels", lambda decisions: identity)
    apart = compile_module(mod, options)
    assert len(_kernels(apart.mod)) == 4
    (kernel,) = _kernels(shared.mod)
    assert [decision.function for decision in shared.decisions] == [kernel] * 4
    assert {type(decision.function) for decision in shared.decisions} == {str}  # for the manifest
    x = np.random.default_rng(1).standard_normal((ROWS, SIZE)).astype(np.float32)
    result = _run(shared, x)
    assert np.ptp(result) > 0.1
    np.testing.assert_array_equal(result.view(np.uint32), _run(apart, x).view(np.uint32))


def test_kernels_that_differ_otherwise_stay_apart() -> None:
    options = PipelineOptions(resolve_target(None), fusion="fine")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            weight = relax.const(np.ones((SIZE, SIZE), np.float32))
            first = builder.emit(relax.op.matmul(x, weight))
            first = builder.emit(relax.op.multiply(first, relax.const(0.5)))
            second = builder.emit(relax.op.matmul(first, weight))
            second = builder.emit(relax.op.add(second, relax.const(0.5)))
            output = builder.emit_output(second)
        builder.emit_func_output(output)
    assert len(_kernels(compile_module(builder.get(), options).mod)) == 2


def test_only_chosen_numbers_become_parameters() -> None:
    a = tirx.decl_buffer((4,), "float32", "A", layout=None)
    b = tirx.decl_buffer((4,), "float32", "B", layout=None)
    numbers = [1.5, 2.5, 1.5]
    stores = [
        tirx.BufferStore(b, a[i] * tirx.FloatImm("float32", number), [i])
        for i, number in enumerate(numbers)
    ]
    function = tirx.PrimFunc([a, b], tirx.SeqStmt(stores))
    assert _floats(function) == [1.5, 2.5, 1.5]
    assert _floats(without_numbers(function)) == [0.0, 0.0, 0.0]
    moved = numbers_as_parameter(function, {0: 1, 2: 0}, 1)
    assert _floats(moved) == [2.5]
    assert [tuple(map(int, param.shape)) for param in moved.params] == [(4,), (2,), (4,)]


def _floats(function: tirx.PrimFunc) -> list[float]:
    return np.array(numbers_of(function), np.uint32).view(np.float32).tolist()


def test_integers_become_parameters_unless_they_are_places() -> None:
    a, c = (tirx.decl_buffer((32,), "int32", name, layout=None) for name in "AC")
    lanes = tirx.Ramp(16, 1, 16)
    sums = tirx.Broadcast((tirx.const(-7, "int32") - a[3]) * 5, 16)
    body = tirx.BufferStore(c, a[lanes] * tirx.Broadcast(-9, 16) + sums, [lanes])
    kernel = tirx.PrimFunc([a, c], body)
    assert np.array(numbers_of(kernel), np.uint32).view(np.int32).tolist() == [-9, -7, 5]
    moved = numbers_as_parameter(kernel, {0: 1, 1: 0, 2: 2}, 1).with_attr("global_symbol", "main")
    assert numbers_of(moved) == ()
    x, found = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    numbers = np.array([-7, -9, 5], np.int32).view(np.float32)
    tvm.compile(moved, target="llvm")["main"](*map(tensor_of, (x, numbers, found)))
    np.testing.assert_array_equal(found[16:], x[16:] * -9 + (-7 - 3) * 5)
