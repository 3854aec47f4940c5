"""Weights as parameters: of 8-bit and transposed convolutions, for Winograd, and shared."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax
from tvm.relax import op

import tvm_hybrid
from relay_passes.ir.decisions import Decision
from tests.relay_passes.graphs import Body, module, run
from tests.relay_passes.quantized import dequantize, quantize

pytestmark = pytest.mark.turns

Shapes = list[tuple[tuple[int, ...], str]]
RNG = np.random.default_rng(11)


def quantised(x: relax.Expr, w: relax.Expr, by_channel: relax.Expr, up: relax.Expr) -> relax.Expr:
    """Integer convolutions: an ordinary one, a depthwise one, and a transposed one.

    The scales avoid values halfway between two integers.
    """
    y = op.nn.conv2d(dequantize(x, 0.0213, 3), dequantize(w, 0.0107, 0, "int8"), padding=1)
    y = dequantize(quantize(op.nn.relu(y), 0.1, 5), 0.1, 5)
    y = op.nn.conv2d(y, dequantize(by_channel, 0.0117, 128), padding=1, groups=16)
    y = dequantize(quantize(y, 0.1, 90), 0.1, 90)
    return op.nn.conv2d_transpose(y, dequantize(up, 0.02, 0, "int8"), strides=2, padding=1)


QUANTISED: Shapes = [
    ((1, 5, 9, 9), "uint8"),
    ((16, 5, 3, 3), "int8"),
    ((16, 1, 3, 3), "uint8"),
    ((16, 8, 4, 4), "int8"),
]


def decoder(x: relax.Expr, w: relax.Expr, b: relax.Expr, v: relax.Expr) -> relax.Expr:
    y = op.nn.conv2d_transpose(x, w, strides=2, padding=1)
    y = op.nn.relu(op.add(y, op.reshape(b, (1, 12, 1, 1))))
    return op.nn.conv2d_transpose(y, v, strides=2)


DECODER: Shapes = [
    (shape, "float32") for shape in [(1, 16, 7, 5), (16, 12, 4, 4), (12,), (12, 10, 2, 2)]
]


def tower(x: relax.Expr, w: relax.Expr) -> relax.Expr:
    """One weight used twice, large enough for Winograd."""
    return op.nn.conv2d(op.nn.relu(op.nn.conv2d(x, w, padding=1)), w, padding=1)


TOWER: Shapes = [((1, 32, 24, 24), "float32"), ((32, 32, 3, 3), "float32")]


def net(body: Body, shapes: Shapes) -> IRModule:
    mod = module(body, *shapes)
    return IRModule({"main": mod["main"].with_attr("num_input", 1)})


def values(shapes: Shapes) -> list[np.ndarray]:
    found = []
    for shape, dtype in shapes:
        if dtype == "float32":
            found.append(RNG.standard_normal(shape).astype(np.float32))
        else:
            limits = np.iinfo(dtype)
            found.append(RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True))
    return found


def bound(mod: IRModule, arrays: list[np.ndarray]) -> tvm_hybrid.Executable:
    """The module with constant weights."""
    names = [str(parameter.name) for parameter in mod["main"].params[1:]]
    params = dict(zip(names, arrays[1:], strict=True))
    return tvm_hybrid.compile(relax.transform.BindParams("main", params)(mod), num_threads=1)


def by_transform(mod: IRModule, arrays: list[np.ndarray]) -> tuple[np.ndarray, list[Decision], int]:
    """Packs weights by `main_transform_params`; returns result, decisions, number of weights."""
    decisions: list[Decision] = []
    parts = tvm_hybrid.partition_for_tvm_hybrid(
        mod, transform_params=True, decisions=decisions, num_threads=1
    )
    library = tvm.compile(relax.transform.RunCodegen()(parts), tvm_hybrid.resolve_target(None))
    machine = relax.VirtualMachine(library, tvm.cpu())
    x, *weights = map(tvm.runtime.tensor, arrays)
    packed = machine["main_transform_params"](weights)
    return machine["main"](x, *packed).numpy(), decisions, len(packed)


def regions(decisions: list[Decision]) -> list[str]:
    """Operators of the kernels, without the fused ones."""
    return [each.op.split(" ")[0] for each in decisions if each.taken and each.kernel]


@pytest.fixture(scope="module")
def eight_bits() -> tuple[IRModule, list[np.ndarray], np.ndarray]:
    """The network, its arguments, and its result with constant weights."""
    mod, arrays = net(quantised, QUANTISED), values(QUANTISED)
    return mod, arrays, bound(mod, arrays).run(arrays[0])[0].numpy()


@pytest.mark.parametrize("level", [None, "x86-64-v3"])
def test_8_bit_convolutions(
    eight_bits: tuple[IRModule, list[np.ndarray], np.ndarray], level: str | None
) -> None:
    """Integer sums are exact, so the bits equal those with constant weights."""
    mod, arrays, wanted = eight_bits
    target = level and {"kind": "llvm", "mcpu": level}
    executable = tvm_hybrid.compile(mod, target=target, num_threads=1)
    taken = [each for each in executable.explain() if each.taken and "conv2d" in each.op]
    assert regions(taken) == ["conv2d", "depthwise_conv2d", "conv2d"]
    assert all("s8s32" in each.kernel for each in taken)
    np.testing.assert_array_equal(executable.run(*arrays)[0].numpy(), wanted)


def test_8_bit_weights_packed_before_a_run(
    eight_bits: tuple[IRModule, list[np.ndarray], np.ndarray],
) -> None:
    mod, arrays, wanted = eight_bits
    got, decisions, _ = by_transform(mod, arrays)
    assert [each for each in regions(decisions) if "conv2d" in each] == [
        "conv2d",
        "depthwise_conv2d",
        "conv2d",
    ]
    np.testing.assert_array_equal(got, wanted)
    (f32,) = run(mod, arrays)
    assert np.abs(got - f32).max() <= 1e-5 * np.abs(f32).max()


def test_transposed_convolutions() -> None:
    """Kernels are those of constant weights; at the call, products pack weights themselves."""
    mod, arrays = net(decoder, DECODER), values(DECODER)
    constant = bound(mod, arrays)
    assert regions(list(constant.explain())) == ["conv2d", "matmul", "matmul"]
    wanted = constant.run(arrays[0])[0].numpy()
    executable = tvm_hybrid.compile(mod, num_threads=1)
    assert regions(list(executable.explain())) == ["conv2d", "batch_matmul", "batch_matmul"]
    np.testing.assert_allclose(executable.run(*arrays)[0].numpy(), wanted, rtol=1e-5, atol=1e-4)
    got, decisions, _ = by_transform(mod, arrays)
    assert regions(decisions) == ["conv2d", "matmul", "matmul"]
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_allclose(got, run(mod, arrays)[0], rtol=1e-5, atol=1e-3)


def test_winograd_and_a_shared_weight() -> None:
    """`main_transform_params` transforms it once for both; each call would transform it again."""
    mod, arrays = net(tower, TOWER), values(TOWER)
    got, decisions, packed = by_transform(mod, arrays)
    assert regions(decisions) == ["conv2d_winograd"] * 2 and packed == 1
    np.testing.assert_array_equal(got, bound(mod, arrays).run(arrays[0])[0].numpy())
    executable = tvm_hybrid.compile(mod, num_threads=1)
    assert regions(list(executable.explain())) == ["conv2d"] * 2
