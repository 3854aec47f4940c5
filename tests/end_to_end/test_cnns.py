"""CNN blocks from ONNX to results: compared with ONNX Runtime, and which kernels run them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tvm_hybrid
from tests.microkernels.isa_targets import target_of
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

from . import cnn_blocks
from .cnn_blocks import STEP, Net, made

pytestmark = pytest.mark.turns

Block = Callable[[Net], None]

# Products of each block (a pointwise convolution is a matmul), how many operators are fallbacks at
# most, and the number of reorders: one in front, and one behind if the last image has several
# channels.
BLOCKS: dict[Block, tuple[dict[str, int], set[str], int]] = {
    cnn_blocks.residual: ({"conv2d": 6}, set(), 2),
    cnn_blocks.squeeze_and_excite: (
        {"matmul": 4, "depthwise_conv2d": 1}, {"mean", "multiply"}, 2,
    ),
    cnn_blocks.fire: ({"matmul": 2, "conv2d": 1}, {"max_pool2d"}, 2),
    cnn_blocks.shuffle: ({"conv2d": 2, "depthwise_conv2d": 1}, set(), 2),
    # Transposing the enlarged image and the other part before the join moves the fewest bytes.
    cnn_blocks.pyramid: ({"conv2d": 4, "matmul": 2}, {"resize2d"}, 3),
    cnn_blocks.enlarging: ({"conv2d": 1, "matmul": 2}, set(), 2),
}  # fmt: skip


def by_onnxruntime(model: onnx.ModelProto, x: NDArray[Any]) -> NDArray[Any]:
    """ONNX Runtime's result, operator by operator without optimisation."""
    return np.asarray(literal_session(model).run(None, {"x": x})[0])


def images(model: onnx.ModelProto) -> NDArray[np.float32]:
    dims = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(8).standard_normal(dims).astype(np.float32)


def results(
    model: onnx.ModelProto, **options: Any
) -> tuple[tvm_hybrid.InferenceSession, NDArray[Any], NDArray[Any]]:
    """The session, its result, and ONNX Runtime's result."""
    session = tvm_hybrid.InferenceSession(model.SerializeToString(), **options)
    x = images(model)
    (got,), wanted = session.run(None, {"x": x}), by_onnxruntime(model, x)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    return session, got, wanted


def products(session: tvm_hybrid.InferenceSession) -> Counter[str]:
    """Counts the products of each kind that templates compute, alone or in merged regions."""
    ops = " ".join(decision.op for decision in session.explain().taken)
    return Counter(re.findall(r"\b(?:\w*conv2d\w*|\w*matmul)\b", ops))


def left(session: tvm_hybrid.InferenceSession) -> Counter[str]:
    """Counts the fallbacks of each operator."""
    return Counter(decision.op for decision in session.explain().left)


def rms(values: NDArray[Any]) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


@pytest.mark.sampled
@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_f32(block: Block, batch: int, threads: int) -> None:
    wanted_products, allowed, reorders = BLOCKS[block]
    net, model = made(block, batch)
    session, got, wanted = results(model, num_threads=threads, fast_math="off")
    # A sum of K terms rounds K times by at most 2**-24 of itself, in either direction: sqrt(K)
    # times that, in both programs, for each layer; 3 deviations. The epilogues add four roundings.
    bound = 2 * 3 * net.layers * np.sqrt(net.depth + 4) * 2.0**-24
    assert np.abs(got - wanted).max() <= bound * rms(wanted)
    assert products(session) == wanted_products, str(session.explain())
    found = left(session)
    assert found.pop("reorder") == reorders, str(session.explain())
    assert set(found) <= allowed, str(session.explain())


@pytest.mark.sampled
@pytest.mark.isa("avx512_bf16")
@pytest.mark.parametrize(
    "block", [cnn_blocks.residual, cnn_blocks.squeeze_and_excite, cnn_blocks.shuffle]
)
def test_bf16(block: Block) -> None:
    net, model = made(block)
    target = target_of("avx512_bf16")
    session, got, wanted = results(model, num_threads=1, precision="bf16", target=target)
    # Each layer rounds weights and images by at most 2**-9 of themselves, independently: the
    # squares add up over the layers; 6 deviations.
    bound = 6 * np.sqrt(2 * net.layers) * 2.0**-9
    assert np.abs(got - wanted).max() <= bound * rms(wanted)
    assert products(session) == BLOCKS[block][0], str(session.explain())
    kernels = [each.kernel for each in session.explain().taken if re.search("conv|mat", each.op)]
    assert all("bf16_bf16" in kernel for kernel in kernels), kernels


@pytest.mark.sampled
@pytest.mark.parametrize(
    "block", [cnn_blocks.residual, cnn_blocks.squeeze_and_excite, cnn_blocks.fire]
)
def test_int8(block: Block) -> None:
    _, model = made(block, quantized=True)
    session, got, wanted = results(model, num_threads=1)
    # Integer sums are exact here and rounded in ONNX Runtime, by less than 1e-5 of a step. A value
    # that near to a tie may become its neighbour, which is rare.
    assert np.abs(got - wanted).max() <= STEP
    assert (got != wanted).mean() < 0.01
    assert products(session) == BLOCKS[block][0], str(session.explain())
    kernels = [each.kernel for each in session.explain().taken if re.search("conv|mat", each.op)]
    assert all("u8s8s32" in kernel for kernel in kernels), kernels
    assert not [op for op in left(session) if re.search("conv|mat", op)]


def test_winograd() -> None:
    net, model = made(cnn_blocks.plain)
    session, got, wanted = results(model, num_threads=1)
    assert products(session) == {"conv2d_winograd": 2}, str(session.explain())
    # The stated error of Winograd, for each layer.
    assert np.abs(got - wanted).max() <= 5e-5 * net.layers * rms(wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("quantized", [False, True])
def test_equal_blocks_share_their_kernels(quantized: bool) -> None:
    net, model = made(cnn_blocks.equal_blocks, quantized=quantized)
    session = tvm_hybrid.InferenceSession(model.SerializeToString(), num_threads=1)
    assert products(session) == {"matmul": 8, "depthwise_conv2d": 4} and net.layers == 12
    taken = [each for each in session.explain().taken if re.search("conv|mat", each.op)]
    uses = Counter(decision.function for decision in taken)
    assert set(uses.values()) == {4}, str(session.explain())
    assert len({decision.workload for decision in taken}) == len(uses)
