"""Attention of one query to any number of keys, which reads k and v in place as `decode` does.

It has the bits of the static kernel for that number of keys, which is skinny. Sums of packed
operands have another order, and other bits.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.examples import some
from tests.tir_schedules.attention_reference import assert_near, expected
from tests.tir_schedules.attention_regions import Attention, values
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel
from tests.tir_schedules.run_region import BF16_ISAS, INTEGER_ISAS, ISAS, machine_for
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.template import template_for

pytestmark = pytest.mark.turns

PAST = SymbolicSize.of("past")
TEMPLATE = template_for("attention")
BEST = {"f32": ISAS[-1], "rounded": BF16_ISAS[-1], "bf16": BF16_ISAS[-1], "int8": INTEGER_ISAS[-1]}
OUTPUTS = {"bf16": "bfloat16", "int8": "uint8"}


def attention(kind: str, **fields: object) -> Attention:
    """Attention with grouped heads and a mask; only batch and lengths are dynamic."""
    layouts = ("bshd", "bhsd", "bhsd", "bshd")
    base = Attention(kind=kind, heads=4, group=2, layouts=layouts, mask="rows")
    given = {"output": OUTPUTS.get(kind, "float32"), **fields}
    return replace(base, batch=BATCH, m=LENGTH, n=PAST + LENGTH, **given)  # type: ignore[arg-type]


def check(whole: Attention, isa: str = "", *, keys: tuple[int, ...]) -> DynamicKernel:
    """Checks the kernel, also against the bits of static kernels, and returns it."""
    isa = isa or BEST[whole.kind]
    machine = machine_for(isa)
    kernel = DynamicKernel(whole.region, isa)
    for n in some(keys):
        known = replace(whole, batch=2, m=1, n=n)
        arrays = values(known)
        config = TEMPLATE.default_config(known.region, machine)
        assert config.to_dict()["skinny"]
        same = DynamicKernel(known.region, isa, config=config).run({}, arrays)
        sizes = {"batch": 2, "length": 1, "past": n - 1}
        for at_end in (True, False):
            result = kernel.run(sizes, arrays, at_end)
            assert_near(known, result, expected(known, arrays))
            assert np.array_equal(result, same)
    return kernel


@pytest.mark.parametrize("isa", ISAS)
def test_floats(isa: str) -> None:
    check(attention("f32"), isa, keys=(1, 2, 48, 131))


@pytest.mark.parametrize("isa", BF16_ISAS[1::2])
def test_bfloat16(isa: str) -> None:
    check(attention("bf16"), isa, keys=(1, 131))


def test_floats_that_are_rounded() -> None:
    check(attention("rounded", d=24, group=1), keys=(1, 19))


@pytest.mark.parametrize("isa", INTEGER_ISAS[2::2])
def test_integers(isa: str) -> None:
    check(attention("int8"), isa, keys=(1, 131))


def test_packed_operands_have_other_bits() -> None:
    known = replace(attention("f32"), batch=2, m=1, n=131)
    machine, arrays = machine_for(ISAS[-1]), values(known)
    config = TEMPLATE.default_config(known.region, machine)
    packed = msgspec.structs.replace(config, skinny=False)
    one, other = (
        DynamicKernel(known.region, ISAS[-1], config=each).run({}, arrays)
        for each in (config, packed)
    )
    assert not np.array_equal(one, other)


def test_a_known_number_of_queries_needs_no_other_code() -> None:
    whole = replace(attention("f32"), m=1, n=PAST)
    kernel = DynamicKernel(whole.region, ISAS[-1])
    isa = machine_for(ISAS[-1]).isa
    assert "pack" not in TEMPLATE.build(whole.region, kernel.config, isa).script()
    known = replace(whole, batch=1, n=21)
    arrays = values(known)
    result = kernel.run({"batch": 1, "past": 21}, arrays)
    assert_near(known, result, expected(known, arrays))


def test_later_keys_are_not_read() -> None:
    whole = attention("f32", causal=0, mask="")
    kernel = DynamicKernel(whole.region, ISAS[-1])
    known = replace(whole, batch=2, m=1, n=20)
    arrays = values(known)
    arrays[2].reshape(2, 2, 20, 32)[:, :, 1:] = np.nan
    result = kernel.run({"batch": 2, "length": 1, "past": 19}, arrays)
    assert np.isfinite(result).all()


@pytest.mark.parametrize(("kind", "isa"), [("f32", "avx512"), ("int8", "avx2_vnni")])
def test_threads_share_many_keys(kind: str, isa: str) -> None:
    whole = attention(kind, group=4)
    kernel = DynamicKernel(whole.region, isa, threads=20)
    assert kernel.config.to_dict()["key_shares"] == 20
    function = TEMPLATE.build(whole.region, kernel.config, machine_for(isa).isa)
    assert function.script().count("T.parallel(") == 5
    # 256 KB of k and v, and one key fewer; splits with no key, a few keys, and whole vectors.
    least = {"f32": 1024, "int8": 4096}[kind]
    for batch, n in [(1, least - 1), (1, least), (1, least + 6), (2, 2 * least // 3), (20, 127)]:
        known = replace(whole, batch=batch, m=1, n=n)
        arrays = values(known)
        sizes = {"batch": batch, "length": 1, "past": n - 1}
        for at_end in (True, False):
            assert_near(known, kernel.run(sizes, arrays, at_end), expected(known, arrays))
