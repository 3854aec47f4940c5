"""Chains with dynamic rows: one kernel equals the parts in sequence, to the bit."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from microkernels.base.errors import ConfigError
from tests.tir_schedules.chain_regions import (
    INPUT,
    ChainBuilder,
    bf16_mlp,
    f32_layer,
    f32_mlp,
    int8_mlp,
    small_integers,
    transformer_block,
    values,
)
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    ISAS,
    highest_native,
    machine_for,
)
from tir_schedules.chains.mlp_chain import MLP_CHAIN
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tvm_hybrid.tuning.verification.chain_bounds import expected_of_chain

pytestmark = pytest.mark.turns

BEST = highest_native(INTEGER_ISAS)
SIZES = [(1, 1), (1, 2), (1, 9), (3, 7), (2, 64)]


def check_exact(region: Region, kernel: DynamicKernel, integers: bool = False) -> None:
    for number, sizes in enumerate([*SIZES, (0, 3)]):
        at = dict(zip(("batch", "length"), sizes, strict=True))
        known = at_sizes(region, at)
        arrays = (values if integers else small_integers)(known)
        result = kernel.run(at, arrays, at_end=bool(number % 2))
        np.testing.assert_array_equal(result, MLP_CHAIN.reference(known, arrays))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
def test_f32(isa: str) -> None:
    region = f32_mlp(LENGTH, sizes=(13, 70, 33))
    check_exact(region, DynamicKernel(region, isa))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
def test_integers(isa: str) -> None:
    region = int8_mlp(LENGTH)
    check_exact(region, DynamicKernel(region, isa), integers=True)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", BF16_ISAS)
def test_bfloat16(isa: str) -> None:
    region = bf16_mlp(LENGTH)
    check_exact(region, DynamicKernel(region, isa))


@pytest.mark.parametrize(("threads", "most", "alone"), [(1, 8, 0), (2, 5, 1), (3, 64, 10)])
def test_blocks_of_rows_on_threads(threads: int, most: int, alone: int) -> None:
    region = f32_mlp(BATCH, LENGTH, sizes=(13, 40, 20))
    config = MLP_CHAIN.default_config(region, machine_for(BEST))
    numbers = {"threads": threads, "most_rows": most, "alone_rows": alone}
    config = msgspec.structs.replace(config, **numbers)
    check_exact(region, DynamicKernel(region, BEST, threads, config))


def test_operands_of_every_kind() -> None:
    """A residual from the chain, one from outside, and one that all sequences share."""
    lead = (BATCH, LENGTH)
    first, second = f32_layer(lead, 13, 20), f32_layer(lead, 20, 20, residual=True)
    chain = ChainBuilder([first.inputs[0]])
    source = chain.add(first, INPUT)
    source = chain.add(second, source, None, None, source)
    source = chain.add(second, source)
    third = second.replace(operands=(second.operands[0], Tensor((LENGTH, 20), "float32")))
    chain.add(third, source)
    region = chain.region()
    check_exact(region, DynamicKernel(region, BEST))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
def test_normalisations(isa: str) -> None:
    region = transformer_block((BATCH, LENGTH), 24, 40)
    kernel = DynamicKernel(region, isa)
    for sizes in SIZES:
        at = dict(zip(("batch", "length"), sizes, strict=True))
        known = at_sizes(region, at)
        arrays = values(known)
        expected = expected_of_chain(known, arrays, 0)
        assert expected.difference(kernel.run(at, arrays)) is None


def test_what_is_refused() -> None:
    region = f32_mlp(LENGTH)
    isa = machine_for("avx2").isa
    assert MLP_CHAIN.rejection(region, isa) is None
    strange = f32_mlp(5, sizes=(13, SymbolicSize.of("n"), 20))
    assert "a weight of dynamic shape" in (MLP_CHAIN.rejection(strange, isa) or "")
    columns = msgspec.structs.replace(
        MLP_CHAIN.default_config(region, machine_for("avx2")), mode="columns"
    )
    with pytest.raises(ConfigError, match="dynamic number of rows"):
        MLP_CHAIN.build(region, columns, isa)
