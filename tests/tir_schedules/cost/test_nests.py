"""Loop nests have the problem's iterations, and bytes that shrink towards the inside."""

from __future__ import annotations

import itertools
import math

import pytest

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named
from tests.microkernels.isa_targets import MCPU
from tests.tir_schedules.attention_regions import Attention
from tests.tir_schedules.chain_regions import ChainBuilder, f32_layer
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.depthwise_regions import depthwise
from tests.tir_schedules.pair_regions import pair
from tir_schedules.attention.config import AttentionConfig
from tir_schedules.chains.depthwise_pointwise_cost import PairConfig
from tir_schedules.chains.mlp_chain_config import MlpChainConfig
from tir_schedules.convolution.depthwise.config import DepthwiseConfig
from tir_schedules.core.config import Config
from tir_schedules.core.loop_nest import LoopNest, balance_of, pieces
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.product.matmul import MATMUL

MACHINE = Machine("znver4", isa_named("avx512"), 2)


def matmul(m: int, k: int, n: int, dtype: str = "float32") -> Region:
    a = Tensor((m, k), "uint8" if dtype == "int8" else dtype)
    output = Tensor((m, n), "int32" if dtype == "int8" else "float32")
    return Region(op="matmul", inputs=(a, Tensor((k, n), dtype, True)), output=output)


def batch_matmul() -> Region:
    a, b = Tensor((4, 20, 24), "float32"), Tensor((4, 24, 40), "float32")
    return Region(op="batch_matmul", inputs=(a, b), output=Tensor((4, 20, 40), "float32"))


def chain() -> Region:
    builder = ChainBuilder([Tensor((30, 13), "float32")])
    first = builder.add(f32_layer((30,), 13, 64))
    builder.add(f32_layer((30,), 64, 32), first)
    return builder.region()


REGIONS = {
    "matmul": matmul(100, 70, 130),
    "narrow": matmul(100, 70, 130, "int8"),
    "batch_matmul": batch_matmul(),
    "conv2d": conv_region((14, 14), 32, 48, (3, 3), padding=(1, 1, 1, 1)),
    "narrow conv2d": conv_region(
        (14, 19), 32, 48, (3, 3), padding=(1, 1, 1, 1), dtype="uint8", a_zero_point=5
    ),
    "grouped": conv_region((14, 14), 32, 64, (3, 3), padding=(1, 1, 1, 1), groups=2),
    "few results": matmul(4, 4096, 40),
    "winograd": conv_region(
        (14, 14), 32, 48, (3, 3), padding=(1, 1, 1, 1), op="conv2d_winograd"
    ),
    "depthwise": depthwise((14, 14), 50, (3, 3), padding=(1, 1, 1, 1), batch=2),
    "pair": pair((14, 14), 50, 40, batch=2),
    "attention": Attention(batch=1, heads=4, m=40, n=36, d=32, e=24).region,
    "long attention": Attention(batch=1, heads=2, m=70, n=2500, d=32).region,
    "narrow attention": Attention(batch=1, heads=4, m=40, n=36, d=32, kind="int8").region,
    "decoding": Attention(batch=1, heads=4, m=1, n=2100, d=32, layouts=("bhsd",) * 4).region,
    "chain": chain(),
}  # fmt: skip


def some_configs(region: Region, machine: Machine = MACHINE) -> list[Config]:
    configs = list(template_for(region.op).space(region, machine))
    return configs[:: max(1, len(configs) // 25)]


def loop_nests(region: Region, config: Config) -> tuple[LoopNest, ...]:
    return tuple(template_for(region.op).nests(region, config))


def elements_of_a_step(config: Config) -> list[int]:
    """Elements of K in one step of each nest: kr of its kernel, single taps if depthwise."""
    if isinstance(config, AttentionConfig):
        kernels = [config.scores_kernel, config.product_kernel]
    elif isinstance(config, MlpChainConfig):
        kernels = [each.kernel for each in config.matmuls]
    elif isinstance(config, PairConfig):
        return [1, microkernel_named(config.pointwise.kernel).kr]
    elif isinstance(config, DepthwiseConfig):
        return [1]
    else:
        kernels = [config.to_dict()["kernel"]]
    return [microkernel_named(kernel).kr for kernel in kernels]


def executed(nest: LoopNest) -> float:
    return math.prod(loop.extent for loop in nest.loops)


@pytest.mark.parametrize("name", REGIONS)
def test_bytes_never_grow_towards_the_inside(name: str) -> None:
    region = REGIONS[name]
    for config in some_configs(region):
        nests = loop_nests(region, config)
        assert nests
        for nest in nests:
            assert all(loop.extent > 0 for loop in nest.loops)
            assert nest.loops[-1].kind == "vector"
            for outer, inner in itertools.pairwise(nest.loops):
                for more, less in zip(outer.touched, inner.touched, strict=True):
                    assert less <= more * (1 + 1e-9), (config, outer, inner)
            assert 0 < nest.useful <= 1 and 0 < nest.balance <= 1


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ["avx2", "avx512", "amx"])
@pytest.mark.parametrize("name", REGIONS)
def test_every_multiplication_is_counted_once(name: str, isa: str) -> None:
    region = REGIONS[name]
    # 36 products for 4 x 4 results of 3 x 3 taps each.
    saved = 4 if name == "winograd" else 1
    for machine in (Machine(MCPU[isa], isa_named(isa), threads) for threads in (1, 2, 5, 53, 112)):
        for config in some_configs(region, machine):
            nests = loop_nests(region, config)
            for nest, kr in zip(nests, elements_of_a_step(config), strict=True):
                done = saved * executed(nest) * kr * nest.useful
                assert done == pytest.approx(nest.operations), (config, nest)
            total = 2 * sum(nest.operations for nest in nests)
            assert total == pytest.approx(template_for(region.op).flops(region))


def test_threads_along_k_are_counted() -> None:
    region = REGIONS["few results"]
    machine = Machine("znver4", isa_named("avx512"), 12)
    config = MATMUL.default_config(region, machine)
    assert config.threads_k > 1
    (nest,) = loop_nests(region, config)
    assert nest.loops[0].extent == config.threads == 12
    steps = next(loop for loop in nest.loops if loop.kind == "reduction").extent
    assert steps <= 4096 / config.threads_k and nest.balance > 0.9


def test_bytes_of_a_block_grow_with_the_block() -> None:
    region = REGIONS["matmul"]
    default = MATMUL.default_config(region, MACHINE).to_dict()

    def panel_bytes(m_block: int, k_block: int) -> tuple[float, ...]:
        config = MATMUL.config_type.from_dict(
            {**default, "rows": 4, "m_block": m_block, "k_block": k_block, "threads_m": 1}
        )
        (nest,) = loop_nests(region, config)
        return next(loop for loop in nest.loops if loop.name == "K block").touched

    small, tall = panel_bytes(10, 70), panel_bytes(50, 70)
    assert tall[0] == 5 * small[0] and tall[1] == small[1] and tall[2] == 5 * small[2]
    assert panel_bytes(50, 35) == tall  # cutting K only changes loops inside


@pytest.mark.parametrize("name", [name for name in REGIONS if name not in ("depthwise", "pair")])
def test_estimates_are_those_that_the_default_was_chosen_by(name: str) -> None:
    region = REGIONS[name]
    estimate = template_for(region.op).estimate
    cycles = [estimate(region, config, MACHINE) for config in some_configs(region)]
    assert all(value > 0 for value in cycles)
    assert len(set(cycles)) > 3


def test_of_other_kinds_nothing_is_described() -> None:
    x = Tensor((4, 8), "float32")
    region = Region(op="softmax", inputs=(x,), output=x, attrs={"axis": 1})
    config = template_for("softmax").default_config(region, MACHINE)
    assert loop_nests(region, config) == ()
    assert template_for("softmax").estimate(region, config, MACHINE) is None


def test_pieces_and_balance() -> None:
    assert [pieces(12, most) for most in (5, 6, 12, 13)] == [3, 2, 1, 1]
    assert pieces(0.3 * 10, 1) == 3  # not four, despite a rounding error
    assert balance_of(6, 3) == 1.0 and balance_of(4, 3) == pytest.approx(2 / 3)
