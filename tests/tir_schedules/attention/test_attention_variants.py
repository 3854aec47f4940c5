"""Attention on every ISA, on threads, in every configuration; its reference and its errors."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from microkernels.base.errors import ConfigError
from microkernels.isa import isa_named
from tests.tir_schedules.attention_checks import ISAS_OF, best, check
from tests.tir_schedules.attention_reference import expected
from tests.tir_schedules.attention_regions import Attention, case, of_kind, values
from tests.tir_schedules.run_region import machine_for
from tir_schedules.attention.tiled.scores import can_fuse
from tir_schedules.core.region import Tensor
from tir_schedules.core.template import template_for


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "isa"), [(kind, isa) for kind in ("f32", "bf16") for isa in ISAS_OF[kind]]
)
def test_every_isa(kind: str, isa: str) -> None:
    attention = case(batch=1, m=21, n=37, d=20, mask="rows")
    check(of_kind(attention, kind), isa, at_end=kind == "f32")
    if isa != best(kind):
        grouped = case(heads=4, group=2, m=3, n=16, d=64, layout="bhsd", causal=13)
        check(of_kind(grouped, kind), isa)


@pytest.mark.parametrize(
    ("kind", "output"), [("f32", "float32"), ("bf16", "bfloat16"), ("f32", "uint8")]
)
def test_steps_after_the_product(kind: str, output: str) -> None:
    """A sum with another tensor, and a result of 8-bit integers."""
    base = case(m=13, n=18, d=24, residual=True, mask="keys", divided=True)
    check(replace(of_kind(base, kind), output=output, out_zero=3))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "attention",
    [
        case(batch=3, heads=1, m=40, n=300, d=64),
        case(batch=1, heads=1, m=301, n=290, d=64),
        case(batch=1, heads=6, group=3, m=65, n=200, d=64, causal=135),
        of_kind(case(batch=1, heads=3, m=130, n=150, d=64), "bf16"),
    ],
    ids=["three", "one", "grouped", "bf16"],
)
def test_threads_share_the_work(attention: Attention) -> None:
    """No split among threads leaves a query out."""
    check(attention, threads=2)
    if attention.batch * attention.heads == 1:
        check(attention, threads=3)


@pytest.mark.slow
def test_shape_of_the_space() -> None:
    """The default comes first, all configurations differ, and all give equal results."""
    attention, template = case(batch=1, m=50, n=70, d=32, mask="keys"), template_for("attention")
    machine = machine_for(best("f32"), 2)
    configs = list(template.space(attention.region, machine))
    assert configs[0] == template.default_config(attention.region, machine)
    assert len(set(configs)) == len(configs)
    for config in configs[1 :: max(1, len(configs) // 4)]:
        check(attention, threads=2, config=config)


REFERENCES = [
    case(heads=4, group=2, m=7, n=33, e=20, layout="bhsd", mask="keys"),
    case(layouts=("packed", "packed", "packed", "bhsd"), mask="where", causal=3, residual=True),
    of_kind(case(layouts=("bshd", "bhds", "bshd", "bshd"), mask="square", divided=True), "bf16"),
    of_kind(case(mask="rows", absent=-1e4, zeros=(3, 130, 2, 99)), "int8"),
    replace(of_kind(case(score_scale=0.05), "int8"), output="float32"),
]


@pytest.mark.parametrize("attention", REFERENCES, ids=range(len(REFERENCES)))
def test_the_templates_own_reference(attention: Attention) -> None:
    """Tuning and verification compare with it, so it must lie within the bound, too."""
    arrays = values(attention)
    found = np.asarray(template_for("attention").reference(attention.region, arrays))
    wanted = expected(attention, arrays)
    error = np.abs(found.astype(np.float64) - wanted.value)
    assert found.shape == wanted.value.shape
    assert (error <= wanted.bound).all(), float((error - wanted.bound).max())


def test_operations_are_counted() -> None:
    region = case(batch=2, heads=4, group=2, m=10, n=20, d=16, e=24).region
    assert template_for("attention").flops(region) == 2 * 2 * 4 * 10 * 20 * (16 + 24)


def test_what_it_does_not_build_has_a_reason() -> None:
    template, isa = template_for("attention"), isa_named("avx512")
    region = case().region
    assert template.reject(region, isa) is None
    outside = region.replace(attrs={**region.attrs, "k_offset": 1})
    assert template.reject(outside, isa) == "k reaches beyond its tensor"
    strides = tuple(2 * stride for stride in region.numbers("out_strides", ()))
    apart = Tensor((*region.output.shape, 2), region.output.dtype)
    scattered = region.replace(output=apart, attrs={**region.attrs, "out_strides": strides})
    assert template.reject(scattered, isa) == "the result's columns are not next to each other"
    shorter = region.replace(attrs={**region.attrs, "batch": (2, 3)})
    assert "2, 3" in str(template.reject(shorter, isa))
    empty = replace(case(), n=0)
    assert "0" in str(template.reject(empty.region, isa))
    wide = [Tensor(tensor.shape, "int32") for tensor in region.inputs]
    scores = region.parts[0]
    scores = scores.replace(inputs=tuple(Tensor(x.shape, "int32") for x in scores.inputs))
    wider = region.replace(inputs=tuple(wide), parts=(scores, *region.parts[1:]))
    assert "int32" in str(template.reject(wider, isa))


@pytest.mark.parametrize(
    ("kind", "key_block", "message"),
    [("int8", 32, "rounded to integers need all keys"), ("f32", 24, "must be a multiple of 16")],
)
def test_blocks_of_keys_that_it_does_not_build(kind: str, key_block: int, message: str) -> None:
    """Integers need the sum over all keys before rounding; a block needs whole vectors of keys."""
    region, template = of_kind(case(n=64), kind).region, template_for("attention")
    machine = machine_for("avx512_vnni")
    default = template.default_config(region, machine)
    config = msgspec.structs.replace(default, key_block=key_block, skinny=False)
    with pytest.raises(ConfigError, match=message):
        template.check(region, config, machine.isa)


def test_masks_of_rows_that_end_in_a_vector_are_added_afterwards() -> None:
    """A vector of the mask in the tile would be read beyond the end of its row."""
    scores = [case(mask="rows", n=n).region.parts[0] for n in (48, 37)]
    assert [can_fuse(each, 16) is not None for each in scores] == [True, False]
    keys = case(mask="keys", n=37).region.parts[0]  # one row, which is copied with its tail
    assert can_fuse(keys, 16) is not None
