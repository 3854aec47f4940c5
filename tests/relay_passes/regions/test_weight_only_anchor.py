"""Products with a weight of few bits are recognised in every way in which they are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

from microkernels.isa import isa_named
from relay_passes.ir.graph import DataflowGraph
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline import Phase, phases
from relay_passes.pipeline_options import PipelineOptions
from relay_passes.regions.integer_anchor import Anchor, match_weight_only
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import MACHINE, TARGET, operators, regions
from tir_schedules.product.weight_only_matmul import WEIGHT_ONLY_MATMUL, dequantised

op = relax.op
M, K, N, BLOCK = 3, 64, 24, 16
RNG = np.random.default_rng(0)
SCALE = RNG.uniform(0.5, 2.0, (K // BLOCK, 1, N)).astype(np.float32)
ZERO = RNG.integers(0, 16, SCALE.shape).astype(np.float32)
FOUR_BITS = RNG.integers(0, 16, (K, N)).astype(np.uint8)
TRANSPOSED = op.astype(relax.const(FOUR_BITS.T.copy()), "float32")


def module(body: Any, k: int = K) -> IRModule:
    """main(x) in normal form, with no constant folded."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((M, k), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(body(x)))
        builder.emit_func_output(output)
    return builder.get()


def weight_of(
    q: np.ndarray = FOUR_BITS,
    scale: np.ndarray = SCALE,
    zero: np.ndarray | None = None,
    blocks: tuple[int, ...] | None = (K // BLOCK, BLOCK, N),
    folded: bool = False,
    swapped: bool = False,
) -> relax.Expr:
    """The chain from a weight of small integers to f32 [K, N]."""
    if folded:
        assert blocks is not None
        stored = relax.const(q.reshape(blocks))
    else:
        stored = relax.const(q) if blocks is None else op.reshape(relax.const(q), blocks)
    value = op.astype(stored, "float32")
    if zero is not None:
        value = op.subtract(value, relax.const(zero))
    factor = relax.const(scale)
    value = op.multiply(factor, value) if swapped else op.multiply(value, factor)
    return value if blocks is None else op.reshape(value, (blocks[0] * blocks[1], N))


def anchor_of(mod: IRModule) -> Anchor | None:
    """What the matcher says of the only matmul."""
    (block,) = mod["main"].body.blocks
    graph = DataflowGraph(block)
    for position, binding in enumerate(graph.bindings):
        call = binding.value
        if isinstance(call, relax.Call) and str(call.op.name) == "relax.matmul":
            return match_weight_only(graph, position, call)
    raise AssertionError("no matmul")


PER_COLUMN = SCALE[:1].copy()
HALF = SCALE.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize(
    ("options", "attrs", "constants"),
    [
        ({}, {"bits": 4, "block": 16}, 2),
        ({"folded": True}, {"bits": 4, "block": 16}, 2),
        ({"swapped": True}, {"bits": 4, "block": 16}, 2),
        ({"zero": ZERO}, {"bits": 4, "block": 16}, 3),
        ({"zero": np.full_like(ZERO, 8)}, {"bits": 4, "block": 16, "zero_point": 8.0}, 2),
        ({"zero": np.float32(7.5)}, {"bits": 4, "block": 16, "zero_point": 7.5}, 2),
        ({"q": FOUR_BITS.astype(np.int8) - 8}, {"bits": 4, "block": 16}, 2),
        ({"q": FOUR_BITS.astype(np.int8)}, {"bits": 8, "block": 16}, 2),
        ({"q": FOUR_BITS % 4}, {"bits": 2, "block": 16}, 2),
        ({"q": FOUR_BITS * 17}, {"bits": 8, "block": 16}, 2),
        ({"blocks": (1, K, N), "scale": PER_COLUMN}, {"bits": 4, "block": K}, 2),
        ({"blocks": None, "scale": PER_COLUMN[0, 0]}, {"bits": 4, "block": K}, 2),
        ({"blocks": None, "scale": PER_COLUMN[0]}, {"bits": 4, "block": K}, 2),
        ({"blocks": None, "scale": np.float32(0.1)}, {"bits": 4, "block": K}, 2),
        ({"scale": SCALE[:, :, :1].copy()}, {"bits": 4, "block": 16}, 2),
        ({"scale": HALF}, {"bits": 4, "block": 16, "scales": "float16"}, 2),
        ({"scale": HALF * np.float32(2**16)}, {"bits": 4, "block": 16}, 2),
        ({"scale": HALF, "q": FOUR_BITS * 17}, {"bits": 8, "block": 16}, 2),
    ],
    ids=[
        "blocks",
        "folded reshape",
        "factor first",
        "zero points",
        "one zero point",
        "a fraction for zero",
        "int4",
        "int8 beyond int4",
        "uint2",
        "uint8",
        "one block",
        "columns",
        "a row of columns",
        "one scale",
        "scales of blocks",
        "float16 scales",
        "scales beyond float16",
        "float16 scales of uint8",
    ],
)
def test_chains_are_recognised(
    options: dict[str, Any], attrs: dict[str, Any], constants: int
) -> None:
    mod = module(lambda x: op.matmul(x, weight_of(**options)))
    anchor = anchor_of(mod)
    assert anchor is not None
    assert anchor.op == "weight_only_matmul" and anchor.attrs == attrs
    assert len(anchor.inputs) == 1 + constants
    bindings = mod["main"].body.blocks[0].bindings
    assert anchor.absorbed == tuple(range(len(bindings) - 1))  # all but the matmul
    region = anchor.region()
    assert region is not None
    assert WEIGHT_ONLY_MATMUL.reject(region, MACHINE.isa) is None


def test_blocks_of_no_whole_words_keep_bytes() -> None:
    q, scale = FOUR_BITS[:60], SCALE[:1].repeat(5, 0)
    weight = weight_of(q, scale, blocks=(5, 12, N))
    anchor = anchor_of(module(lambda x: op.matmul(x, weight), 60))
    assert anchor is not None and anchor.attrs == {"bits": 8, "block": 12}


def test_the_padding_of_a_short_last_block_is_cut_off() -> None:
    weight = op.strided_slice(weight_of(zero=ZERO), [0], [0], [50])
    anchor = anchor_of(module(lambda x: op.matmul(x, weight), 50))
    assert anchor is not None and anchor.attrs == {"bits": 4, "block": 16}
    skipping = op.strided_slice(weight_of(zero=ZERO), [0], [14], [64])
    assert anchor_of(module(lambda x: op.matmul(x, skipping), 50)) is None


@pytest.mark.parametrize(
    "weight",
    [
        relax.const(np.ones((K, N), np.float32)),
        weight_of(FOUR_BITS.astype(np.int32)),
        weight_of(blocks=None, scale=np.ones((K, 1), np.float32)),
        weight_of(scale=np.ones((1, BLOCK, 1), np.float32)),
        op.add(weight_of(), relax.const(np.float32(1.0))),
        op.permute_dims(op.multiply(TRANSPOSED, relax.const(np.float32(0.1))), [1, 0]),
    ],
    ids=["f32", "int32", "scales of rows", "scales in a block", "shifted", "transposed"],
)
def test_other_weights_are_left(weight: relax.Expr) -> None:
    assert anchor_of(module(lambda x: op.matmul(x, weight))) is None


@pytest.mark.isa("avx512")
@pytest.mark.parametrize(
    "options",
    [{}, {"zero": ZERO}, {"zero": np.full_like(ZERO, 8)}],
    ids=["no zero points", "zero points", "one zero point"],
)
def test_the_region_computes_what_the_chain_says(options: dict[str, Any]) -> None:
    bias = relax.const(RNG.standard_normal(N).astype(np.float32))
    weight = weight_of(**options)
    mod = partition(isa_named("avx512"), [])(
        module(lambda x: op.nn.relu(op.add(op.matmul(x, weight), bias)))
    )
    (region,) = regions(mod)
    assert region.op == "weight_only_matmul" and operators(region) == ["add", "relu"]
    decisions: list[Any] = []
    table = phases(PipelineOptions(TARGET), decisions)
    building = (Phase.CONFIGURE_REGIONS, Phase.BUILD_KERNELS, Phase.BUILD_LEFTOVERS)
    passes = [each for phase in building for each in table[phase]]
    with TARGET, tvm.ir.transform.PassContext(opt_level=3):
        lowered = tvm.ir.transform.Sequential(passes)(mod)
        vm_passes = tvm.ir.transform.Sequential(table[Phase.LOWER_TO_VM])
        executable = tvm.compile(lowered, target=TARGET, relax_pipeline=vm_passes)
    (decision,) = decisions
    assert decision.kernel.startswith("avx512_f32_") and decision.kernel.endswith("+uint4")
    x = RNG.standard_normal((M, K)).astype(np.float32)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    result = main(tvm.runtime.tensor(x)).numpy()
    zeros = [ZERO] if len(region.inputs) > 3 else []
    w = dequantised(region, [x, FOUR_BITS, SCALE, *zeros])
    product = x.astype(np.float64) @ w + bias.value.numpy()
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(w) + np.abs(bias.value.numpy())
    bound = (K + 5) * np.finfo(np.float32).eps * magnitudes  # K products, a bias, roundings of w
    assert (np.abs(result - np.maximum(product, 0)) <= bound).all()


@pytest.mark.parametrize(("precision", "cpu", "rounded"), [
    ("bf16", "sapphirerapids", True),
    ("bf16", "cooperlake", False),
    ("auto", "sapphirerapids", False),
])  # fmt: skip
def test_operands_may_be_rounded_for_tiles_if_the_user_says_so(
    precision: str, cpu: str, rounded: bool
) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    mod = module(lambda x: op.matmul(x, weight_of(zero=ZERO)))
    (region,) = collect_regions(mod, PipelineOptions(target, precision=precision))
    assert region.op == "weight_only_matmul"
    assert region.attrs.get("rounded") == ("bfloat16" if rounded else None)
