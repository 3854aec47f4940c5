"""Convolutions whose weights are parameters: packed at the call, or by a separate function."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax
from tvm.relax import op

import tvm_hybrid
from relay_passes.ir.decisions import Decision
from tests.relay_passes.graphs import module, run

pytestmark = pytest.mark.turns

RNG = np.random.default_rng(7)
IMAGE = (1, 5, 9, 9)
WEIGHTS = [(16, 5, 3, 3), *[(16,)] * 5, (16, 1, 3, 3), (24, 16, 1, 1), (32, 6, 3, 3)]
TAKEN = [
    "conv2d + add + multiply + add + relu",
    "depthwise_conv2d + relu",
    "batch_matmul",
    "conv2d + relu",
]


def body(x: relax.Expr, *weights: relax.Expr) -> relax.Expr:
    """Convolutions: with bias and batch norm, depthwise, 1x1, and grouped."""
    w, b, gamma, beta, mean, variance, by_channel, pointwise, grouped = weights
    y = op.add(op.nn.conv2d(x, w, padding=1), op.reshape(b, (1, 16, 1, 1)))
    y = op.nn.batch_norm(y, gamma, beta, mean, variance, axis=1, training=False)[0]
    y = op.nn.conv2d(op.nn.relu(y), by_channel, padding=1, groups=16, strides=2)
    y = op.nn.conv2d(op.nn.relu(y), pointwise)
    return op.nn.relu(op.nn.conv2d(y, grouped, groups=4, padding=1))


@pytest.fixture(scope="module")
def net() -> IRModule:
    mod = module(body, *[(shape, "float32") for shape in (IMAGE, *WEIGHTS)])
    return IRModule({"main": mod["main"].with_attr("num_input", 1)})


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    found = [RNG.standard_normal(shape).astype(np.float32) for shape in (IMAGE, *WEIGHTS)]
    found[6] = np.abs(found[6]) + 1  # the variance
    return found


@pytest.fixture(scope="module")
def wanted(net: IRModule, arrays: list[np.ndarray]) -> np.ndarray:
    return run(net, arrays)[0]


def taken(decisions: Iterable[Decision]) -> list[str]:
    return [each.op for each in decisions if each.taken]


def check(found: np.ndarray, wanted: np.ndarray) -> None:
    # Four layers of sums of up to 54 products, each in another order.
    bound = 4 * 54 * np.finfo(np.float32).eps * np.abs(wanted).max()
    assert np.abs(found - wanted).max() <= bound


def test_weights_are_packed_at_the_call(
    net: IRModule, arrays: list[np.ndarray], wanted: np.ndarray
) -> None:
    executable = tvm_hybrid.compile(net, num_threads=1)
    assert taken(executable.explain()) == TAKEN
    (conv,) = (each for each in executable.explain() if each.op == TAKEN[0])
    assert "Winograd needs a weight that is a constant" in conv.reason
    check(executable.run(*arrays)[0].numpy(), wanted)


def test_the_named_pipeline_has_the_same_kernels(
    net: IRModule, arrays: list[np.ndarray], wanted: np.ndarray
) -> None:
    decisions: list[Decision] = []
    pipeline = relax.get_pipeline("tvm_hybrid", decisions=decisions, num_threads=1)
    library = tvm.compile(net, tvm_hybrid.resolve_target(None), relax_pipeline=pipeline)
    assert taken(decisions) == TAKEN
    machine = relax.VirtualMachine(library, tvm.cpu())
    check(machine["main"](*map(tvm.runtime.tensor, arrays)).numpy(), wanted)


@pytest.mark.machine("znver4")  # whether to merge the two convolutions is an estimate
def test_weights_are_packed_by_a_function_of_their_own(
    net: IRModule, arrays: list[np.ndarray], wanted: np.ndarray
) -> None:
    parts = tvm_hybrid.partition_for_tvm_hybrid(net, transform_params=True)
    main = parts["main"].script()
    for name in ("fused_conv2d(", "fused_depthwise_pointwise(", "fused_conv2d1("):
        assert name in main
    assert main.count("R.permute_dims") == 2  # the image and the result
    assert not any(name in main for name in ("R.sqrt", "R.concat", "R.nn.pad", "R.reshape"))
    generated = relax.transform.RunCodegen()(parts)
    library = tvm.compile(generated, tvm_hybrid.resolve_target(None))
    machine = relax.VirtualMachine(library, tvm.cpu())
    image, *weights = map(tvm.runtime.tensor, arrays)
    packed = machine["main_transform_params"](weights)
    check(machine["main"](image, *packed).numpy(), wanted)


def test_in_bfloat16(net: IRModule) -> None:
    """Weights are rounded, then packed; depthwise convolutions have no narrow kernel then."""
    target = {"kind": "llvm", "mcpu": "cooperlake"}
    executable = tvm_hybrid.compile(net, target=target, precision="bf16", num_threads=1)
    kernels = [each.kernel for each in executable.explain() if each.op.startswith("conv2d")]
    assert len(kernels) == 2 and all("bf16" in kernel for kernel in kernels)
