"""Tuning chains: arguments with distinct results, tolerances that show one wrong element."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from microkernels.machines.machine import Machine
from tests.tir_schedules.chain_regions import f32_layer, int8_layer, mixed, mlp, transformer_block
from tir_schedules.chains.mlp_chain import MLP_CHAIN
from tir_schedules.chains.mlp_chain_config import by_columns, by_rows
from tir_schedules.chains.parts import chain_reference
from tir_schedules.core.region import Region
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.measuring.case import Case
from tvm_hybrid.tuning.measuring.measure import Bench, Effort
from tvm_hybrid.tuning.verification.bounds import element_type
from tvm_hybrid.tuning.verification.chain_bounds import chain_arguments, expected_of_chain

ROWS = (9,)
INTEGERS = mlp([int8_layer(ROWS, 12, 20, a_zero=7), int8_layer(ROWS, 20, 24, zero=9)])
CHAINS = {
    "f32": mlp([f32_layer(ROWS, 12, 20), f32_layer(ROWS, 20, 24)]),
    "integers": INTEGERS,
    "normalisations": transformer_block(ROWS, 12, 16),
    "mixed": mixed(ROWS, 16),
}
every_chain = pytest.mark.parametrize("name", CHAINS)


@pytest.mark.sampled
@every_chain
def test_right_kernels_are_right(name: str) -> None:
    target = resolve_target(None)
    machine = Machine.from_target(target)
    region = CHAINS[name]
    bench = Bench(Case.of(region, MLP_CHAIN, machine, str(target)), MLP_CHAIN)
    two = dataclasses.replace(machine, threads=2)
    effort = Effort(samples=1, seconds=0.0)
    for config in (by_rows(region, machine, 1, 2), by_columns(region, two)):
        measurement = bench.measure(config, None, effort, lambda stage: None)
        assert measurement.status == "ok", measurement.error


@every_chain
def test_one_wrong_element_shows(name: str) -> None:
    region = CHAINS[name]
    arrays = chain_arguments(region, 3)
    expected = expected_of_chain(region, arrays, 3)
    right = expected.value.astype(element_type(region.output.dtype))
    assert expected.difference(right) is None
    assert len(np.unique(right)) > right.size // 8
    wrong = right.copy()
    wrong[-1, -1] += np.asarray(np.abs(right).max() / 4).astype(right.dtype)
    assert f"1 of {right.size} elements are wrong" in str(expected.difference(wrong))


def test_integers_have_no_tolerance_and_are_the_reference() -> None:
    arrays = chain_arguments(INTEGERS, 0)
    expected = expected_of_chain(INTEGERS, arrays, 0)
    assert not expected.tolerance.any()
    np.testing.assert_array_equal(expected.value, chain_reference(INTEGERS, arrays))


def test_arguments_depend_on_the_seed_only() -> None:
    def drawn(region: Region, seed: int) -> list[bytes]:
        return [array.tobytes() for array in chain_arguments(region, seed)]

    assert drawn(INTEGERS, 1) == drawn(INTEGERS, 1) != drawn(INTEGERS, 2)
