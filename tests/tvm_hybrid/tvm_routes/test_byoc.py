"""Quantised models read by TVM's own importer get our integer kernels on both of TVM's routes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from tvm import IRModule, relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_hybrid
from relay_passes.ir.functions import REGION
from relay_passes.lower.lower_regions import config_of
from tests.onnx_builder import OnnxBuilder
from tests.onnx_reference.evaluate import evaluate

pytestmark = pytest.mark.turns

M, K, N = 6, 30, 20
F32 = np.float32


def weight(g: OnnxBuilder, k: int, n: int, dtype: type = np.int8) -> str:
    limits = np.iinfo(dtype)
    return g.constant(np.random.default_rng(k).integers(limits.min, limits.max, (k, n), dtype))


def scales(g: OnnxBuilder, n: int) -> str:
    return g.constant(np.random.default_rng(n).uniform(0.001, 0.004, n), F32)


def static() -> onnx.ModelProto:
    """Two linear layers in QDQ form, with weight scales per channel and a quantised result."""
    g = OnnxBuilder()
    scale, zero = g.constant(0.03, F32), g.constant(119, np.uint8)
    x = g.input("x", (M, K))
    for k, n in ((K, N), (N, N)):
        x = g.node("DequantizeLinear", g.node("QuantizeLinear", x, scale, zero), scale, zero)
        zeros = g.constant(np.zeros(n, np.int8))
        w = g.node("DequantizeLinear", weight(g, k, n), scales(g, n), zeros, axis=1)
        bias = g.constant(np.random.default_rng(1).standard_normal(n), F32)
        x = g.node("Relu", g.node("Add", g.node("MatMul", x, w), bias))
    x = g.node("QuantizeLinear", x, scale, zero)
    g.output(g.node("DequantizeLinear", x, scale, zero), (M, N))
    return g.model()


def dynamic() -> onnx.ModelProto:
    """Two linear layers as onnxruntime's quantize_dynamic writes them."""
    g = OnnxBuilder()
    x = g.input("x", (M, K))
    for k, n in ((K, N), (N, N)):
        q, scale, zero = g.nodes("DynamicQuantizeLinear", 3, x)
        product = g.node("MatMulInteger", q, weight(g, k, n), zero)
        factor = g.node("Mul", scale, scales(g, n))
        x = g.node("Mul", g.node("Cast", product, to=onnx.TensorProto.FLOAT), factor)
    g.output(x, (M, N))
    return g.model()


def integer() -> onnx.ModelProto:
    """MatMulInteger on an 8-bit input with both zero points constant."""
    g = OnnxBuilder()
    a, b = g.constant(7, np.uint8), g.constant(130, np.uint8)
    product = g.node(
        "MatMulInteger", g.input("x", (M, K), np.uint8), weight(g, K, N, np.uint8), a, b
    )
    g.output(product, (M, N), np.int32)
    return g.model()


# Number of products of each, and of kernels that compute them: a chain is one kernel.
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], int, int]] = {
    "static": (static, 2, 1),
    "dynamic": (dynamic, 2, 2),
    "integer": (integer, 1, 1),
}
every_model = pytest.mark.parametrize("name", MODELS)


def imported(model: onnx.ModelProto) -> IRModule:
    return from_onnx(model, keep_params_in_input=False)


def inputs(model: onnx.ModelProto) -> list[np.ndarray]:
    """Random inputs, and zeros as well for float inputs."""
    rng = np.random.default_rng(4)
    if model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8:
        return [rng.integers(0, 256, (M, K)).astype(np.uint8) for _ in range(2)]
    return [rng.standard_normal((M, K)).astype(F32), np.zeros((M, K), F32)]


def check(executable: tvm.runtime.Executable, model: onnx.ModelProto) -> None:
    """Compares the bits with the reference."""
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    for x in inputs(model):
        (wanted,) = evaluate(model, {"x": x})
        np.testing.assert_array_equal(main(tvm.runtime.tensor(x)).numpy(), wanted)


@every_model
def test_partitioned_functions_have_integer_kernels(name: str) -> None:
    make, products, _ = MODELS[name]
    model = make()
    mod = tvm_hybrid.partition_for_tvm_hybrid(imported(model))
    functions, kernels = 0, []
    for _, function in mod.functions_items():
        if REGION in function.attrs:
            config = config_of(function)
            kernels += [getattr(c, "kernel", "") for c in getattr(config, "matmuls", (config,))]
            functions += 1
    assert sum("u8s8s32" in kernel for kernel in kernels) == products
    # The stock pipeline compiles the fallbacks, none of which rounds.
    generated = relax.transform.RunCodegen()(mod)
    assert generated["main"].script().count("R.call_dps_packed") == functions
    check(tvm.compile(generated, target=tvm_hybrid.resolve_target(None)), model)


@every_model
def test_the_named_pipeline_runs_integer_kernels(name: str) -> None:
    make, _, programs = MODELS[name]
    model = make()
    target = tvm_hybrid.resolve_target(None)
    executable = tvm.compile(imported(model), target, relax_pipeline="tvm_hybrid")
    ours = ("tvm_hybrid_matmul", "tvm_hybrid_mlp_chain")
    called = [line for line in executable.as_text().splitlines() if any(o in line for o in ours)]
    assert len(called) >= programs
    check(executable, model)


def test_the_named_pipeline_multiplies_by_vnni() -> None:
    target = tvm_hybrid.resolve_target("cascadelake")
    executable = tvm.compile(imported(dynamic()), target, relax_pipeline="tvm_hybrid")
    _nothing, library, _guard = executable.mod.imports
    assert "vpdpbusd" in library.inspect_source("asm")


def test_nothing_of_a_dynamic_quantisation_is_left_to_generic_kernels() -> None:
    """TVM's importer writes twelve operators for it; two kernels compute the whole model."""
    executable = tvm_hybrid.compile(imported(dynamic()), num_threads=1)
    decisions = list(executable.explain())
    assert [decision.taken for decision in decisions] == [True, True]
    assert all("range" in decision.op for decision in decisions)
