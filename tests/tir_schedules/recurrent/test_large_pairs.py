"""Weights of bytes without VNNI: pairs that byte instructions cannot add, and the method chosen."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.recurrent.test_recurrent import check_steps, evaluated
from tests.tir_schedules.recurrent_regions import recurrent, recurrent_inputs
from tests.tir_schedules.run_region import Kernel, machine_for
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.recurrent.problem import RecurrentProblem
from tir_schedules.recurrent.weight import SHARE, TOO_MANY, LargePairs, large_pairs

TEMPLATE = template_for("recurrent")
ISAS = ("avx2", "avx512")


def inputs(region: Region, kind: str) -> list[np.ndarray]:
    """Inputs of a region whose weight is "normal", "small" or "any" bytes."""
    arrays = recurrent_inputs(region)
    if kind != "any":
        values = np.random.default_rng(2).standard_normal(arrays[1].shape)
        values = np.clip(values * (26 if kind == "normal" else 9), -64, 64).astype(np.int8)
        if kind == "normal":  # the largest possible pairs, in both directions
            values[:, 0, :2] = -128
            values[:, -1, 4:8] = 127
        arrays[1] = values
    return arrays


def places_of(region: Region, isa: str) -> LargePairs:
    config = TEMPLATE.default_config(region, machine_for(isa))
    found = large_pairs(RecurrentProblem.of(region), config)
    assert found is not None
    return found


def count_of(region: Region, isa: str, weight: np.ndarray) -> int:
    machine, packing = machine_for(isa), TEMPLATE.packing
    assert packing is not None
    packed = packing(region, TEMPLATE.default_config(region, machine), machine.isa, 1).pack(weight)
    end = places_of(region, isa).end
    return int(packed[end - 4 : end].view(np.int32)[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("kind", "batch", "hidden"),
    [("normal", 1, 64), ("normal", 5, 71), ("small", 2, 33), ("any", 1, 64), ("any", 5, 71)],
)
def test_all_forms_are_exact(kind: str, batch: int, hidden: int, isa: str) -> None:
    """The results have the bits of 16-bit weights; only the sums of products differ in method."""
    region = recurrent("lstm", 4, batch, hidden, "bidirectional", weight="int8")
    arrays = inputs(region, kind)
    count = count_of(region, isa, arrays[1])
    assert {"normal": count > 0, "small": count == 0, "any": count == TOO_MANY}[kind]
    words = recurrent("lstm", 4, batch, hidden, "bidirectional", weight="int16")
    kernel, by_words = Kernel(region, isa), Kernel(words, isa)
    assert f"{isa}_u8s8s32_bytes" in TEMPLATE.kernel_name(region, kernel.config, kernel.isa)
    assert "s16s16s32" in TEMPLATE.kernel_name(words, by_words.config, by_words.isa)
    result = kernel.run(arrays)
    wanted = by_words.run([arrays[0], arrays[1].astype(np.int16), *arrays[2:]])
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(kernel.run(arrays, at_end=False), wanted)
    check_steps(region, arrays, result)


@pytest.mark.parametrize("kind", ["normal", "any"])
def test_any_number_of_steps_and_sequences(kind: str) -> None:
    region = recurrent("lstm", LENGTH, BATCH, 40, weight="int8")
    words = recurrent("lstm", LENGTH, BATCH, 40, weight="int16")
    kernel, by_words = DynamicKernel(region, "avx2"), DynamicKernel(words, "avx2")
    for steps, batch in ((0, 2), (3, 0), (1, 1), (4, 7)):
        values = {"length": steps, "batch": batch}
        arrays = inputs(at_sizes(region, values), kind)
        wanted = by_words.run(values, [arrays[0], arrays[1].astype(np.int16), *arrays[2:]])
        np.testing.assert_array_equal(kernel.run(values, arrays), wanted)


@pytest.mark.parametrize("extra", [0, 1])
def test_the_longest_list_that_there_is_room_for(extra: int) -> None:
    """One more entry than fits, and the panels hold the weight itself."""
    region = recurrent("lstm", 2, 1, 96, weight="int8")
    weight = np.zeros((1, 4 * 96, 96), np.int8)
    entries = 96 // 4 // SHARE + extra
    weight[0, 3, 2 : 2 + 4 * entries : 4] = 100  # one pair for each step of K
    weight[0, 3, 3 : 3 + 4 * entries : 4] = -29
    assert count_of(region, "avx2", weight) == (TOO_MANY if extra else entries)
    weight[weight == -29] = -28
    assert count_of(region, "avx2", weight) == 0


@pytest.mark.parametrize("hidden", [8, 21, 96])
@pytest.mark.parametrize("kind", ["normal", "any"])
@pytest.mark.parametrize("isa", ISAS)
def test_packing(isa: str, kind: str, hidden: int) -> None:
    region = recurrent("lstm", 3, 2, max(hidden, 16), "bidirectional", weight="int8")
    machine = machine_for(isa)
    config, packing = TEMPLATE.default_config(region, machine), TEMPLATE.packing
    assert packing is not None
    array = inputs(region, kind)[1]
    packed = packing(region, config, machine.isa, 1).pack(array)
    assert packed.shape == packing(region, config, machine.isa, 1).shape
    flat = relax.Var("w", relax.TensorType(packed.shape, "int8"))
    unpacked = packing(region, config, machine.isa, 1).unpack(flat)
    np.testing.assert_array_equal(evaluated(flat, unpacked, packed), array)


def test_explain_says_what_the_weight_decides() -> None:
    machine = machine_for("avx2")
    for weight, chosen in (("int8", True), ("int16", False), ("float32", False)):
        region = recurrent("lstm", 3, 2, 32, weight=weight)
        text = TEMPLATE.by_values(region, TEMPLATE.default_config(region, machine))
        assert text.startswith("pairs of bytes if few") == chosen == bool(text)
