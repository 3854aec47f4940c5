"""Right kernels of attention pass the tuner's check, wherever they round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from tests.tir_schedules.attention_checks import best, kernel_of, result_of
from tests.tir_schedules.attention_regions import Attention, case, of_kind
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tvm_hybrid.targets.resolve import resolve_target
from tvm_hybrid.tuning.measuring.case import Case
from tvm_hybrid.tuning.measuring.measure import Bench, Effort
from tvm_hybrid.tuning.verification.bounds import Expected, element_type
from tvm_hybrid.tuning.verification.chain_bounds import (
    attention_arguments,
    expected_of_attention,
    known_case,
)

PLAIN = case(batch=1, heads=2, m=16, n=64, d=48, e=32, mask="keys")
STEPWISE = replace(of_kind(PLAIN, "int8"), score_scale=0.05)
CASES: dict[str, Attention] = {
    "f32": PLAIN,
    "bf16": of_kind(PLAIN, "bf16"),
    "rounded": of_kind(PLAIN, "rounded"),
    "bf16 causal": of_kind(case(m=16, n=32, causal=3, mask="where"), "bf16"),
    "bf16 of few queries": of_kind(case(heads=4, group=2, m=1, n=90, layout="bhsd"), "bf16"),
    "packed, residual": case(layout="packed", residual=True, mask="where_not", absent=-3e38),
    "divided": of_kind(case(layouts=("bshd", "bhds", "bshd", "bshd"), divided=True), "bf16"),
    "int8": of_kind(PLAIN, "int8"),
    "int8, result of bf16": replace(of_kind(PLAIN, "int8"), output="bfloat16"),
    "int8, quantised scores": replace(STEPWISE, output="float32"),
    "int8, signed": of_kind(
        case(types=("int8", "int8", "uint8", "int8"), zeros=(0, 3, 0, -9), residual=True), "int8"
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def drawn(attention: Attention, seed: int = 0) -> tuple[list[np.ndarray], Expected]:
    arrays = attention_arguments(attention.region, seed)
    return arrays, expected_of_attention(attention.region, arrays)


@pytest.mark.sampled
@every_case
def test_right_kernels_pass_and_others_do_not(name: str) -> None:
    """The machine's kernel and the template's reference round at different places."""
    attention = CASES[name]
    kernel = kernel_of(attention, best(attention.kind))
    for seed in range(3):
        arrays, expected = drawn(attention, seed)
        assert expected.difference(result_of(attention, kernel, arrays, True)) is None
        reference = template_for("attention").reference(attention.region, arrays)
        stored = reference.astype(element_type(attention.output))
        assert expected.difference(stored) is None
        if stored.dtype.kind in "iu":
            factor = stored + ((stored > 100) & (stored < 240)).astype(stored.dtype)
        else:
            factor = (stored.astype(np.float32) * np.float32(1.03)).astype(stored.dtype)
        assert "elements are wrong" in str(expected.difference(factor))
        place = np.unravel_index(np.argmax(expected.value), stored.shape)
        stored[place] = np.nan if stored.dtype.kind not in "iu" else stored[place] - 1
        assert f"1 of {stored.size} elements" in str(expected.difference(stored))


@every_case
def test_the_tolerance_is_small_and_the_keys_differ(name: str) -> None:
    attention = CASES[name]
    arrays, expected = drawn(attention)
    assert [(x.shape, x.dtype.name) for x in arrays] == [
        (tensor.shape, tensor.dtype) for tensor in attention.region.inputs
    ]
    value, tolerance = expected.value, expected.tolerance
    assert np.isfinite(value).all() and np.isfinite(tolerance).all()
    assert len(np.unique(value)) > min(value.size // 8, 64)
    if attention.kind == "int8":
        assert (tolerance > 0).mean() < 0.01
    else:
        # Half a unit of bfloat16 in each of some dozens of keys, or some dozens of units of f32.
        share = 2e-3 if attention.kind == "f32" else 0.06
        assert 0 < tolerance.mean() < share * value.std()
    again, _ = drawn(attention)
    other, _ = drawn(attention, 1)
    assert [x.tobytes() for x in again] == [x.tobytes() for x in arrays]
    assert [x.tobytes() for x in other] != [x.tobytes() for x in arrays]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("f32", {"scale": 0.1445}),  # 0.1443
        ("bf16", {"scale": 0.149}),
        ("rounded", {"scale": 0.149}),
        ("bf16 causal", {"causal": 2}),
        ("bf16 causal", {"causal": None}),
        ("bf16 causal", {"mask": "where_not"}),
        ("packed, residual", {"absent": -1.0}),
        ("int8", {"zeros": (128, 121, 0, 130)}),
        ("int8", {"zeros": (129, 121, 0, 131)}),
        ("int8", {"out_scale": 0.0111}),
        ("int8, quantised scores", {"score_scale": 0.051}),
        ("int8, result of bf16", {"v_scale": 0.0202}),
    ],
)
def test_a_wrong_number_or_mask_is_found(name: str, changes: dict[str, Any]) -> None:
    right = CASES[name]
    wrong = replace(right, **changes)
    assert wrong.region.inputs == right.region.inputs
    arrays, expected = drawn(right)
    result = template_for("attention").reference(wrong.region, arrays)
    assert "elements are wrong" in str(expected.difference(result))


def test_probabilities_next_to_a_tie_may_be_rounded_either_way() -> None:
    """Some probabilities are near ties; only their results may be off, within the bound."""
    attention = of_kind(case(batch=2, heads=8, m=64, n=256), "int8")
    attention = replace(attention, output="float32", zeros=(128, 121, 0, 131))
    _, expected = drawn(attention)
    # One integer is 1/255 of the weights' sum, v at most 134 steps of 0.02 from its zero point.
    one_key = 134 * 0.02 / 255
    unsure = expected.tolerance > 0
    assert 0 < unsure.mean() < 0.1
    assert expected.tolerance.max() <= 3 * one_key
    moved = expected.value + 0.99 * expected.tolerance
    assert expected.difference(moved.astype(np.float64)) is None
    beyond = moved + np.where(unsure, 0.02 * expected.tolerance, 1e-4)
    assert f"{beyond.size} of {beyond.size} elements" in str(expected.difference(beyond))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
def test_scores_are_neither_all_alike_nor_one_alone(kind: str, scale: float) -> None:
    """Holds for any scale; integer scores can only be made smaller."""
    attention = of_kind(case(m=40, n=70, scale=scale * (1e-4 if kind == "int8" else 1)), kind)
    arrays, _ = drawn(replace(attention, output="float32"))
    q, k, v = (x.astype(np.float64).reshape(2, -1, 2, 32).swapaxes(1, 2) for x in arrays)
    zeros = attention.zeros if kind == "int8" else (0, 0, 0, 0)
    spread = ((q - zeros[0]) @ (k - zeros[1]).swapaxes(2, 3) * float(attention.factor)).std()
    assert spread < 3.5
    assert spread > 0.8 or (kind == "int8" and scale == 1e-3)
    assert v.std() > 0.8


def test_the_tuner_asks_for_it() -> None:
    attention = CASES["bf16"]
    arrays, expected = known_case(attention.region, template_for("attention"), 3)
    mine, wanted = drawn(attention, 3)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, mine, strict=True))
    np.testing.assert_array_equal(expected.tolerance, wanted.tolerance)


@pytest.mark.parametrize(("causal", "status"), [(3, "ok"), (2, "wrong_result")])
def test_a_bench_tells_right_from_wrong(causal: int, status: str) -> None:
    """The wrong kernel hides one key more."""
    attention, template = CASES["bf16 causal"], template_for("attention")
    built = replace(attention, causal=causal).region

    def build(region: Region, config: Any, isa: Isa) -> tirx.PrimFunc:
        del region
        return template.build(built, config, isa)

    target = resolve_target(None)
    machine = Machine.from_target(target, 1)
    made = type("Made", (type(template),), {"build": staticmethod(build)})()
    bench = Bench(Case.of(attention.region, made, machine, str(target)), made)
    config = template.default_config(attention.region, machine)
    measured = bench.measure(config, None, Effort(samples=1, seconds=0.0), lambda stage: None)
    assert measured.status == status, measured.error
