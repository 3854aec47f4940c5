"""The reference of attention tests agrees with plain NumPy and notices small mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from tests.tir_schedules import attention_reference as reference
from tests.tir_schedules.attention_regions import Attention, case, of_kind, values

CASES = [
    case(),
    case(heads=4, group=2, m=7, n=33, e=20, layout="bhsd", mask="keys"),
    case(heads=3, group=3, layouts=("packed", "packed", "packed", "bshd"), mask="rows"),
    case(m=9, n=130, layouts=("bshd", "bhds", "bshd", "bhds"), mask="heads", divided=True),
    case(batch=1, heads=6, flat=True, mask="square", residual=True),
    case(m=5, n=40, mask="where", causal=35),
    case(m=40, n=40, mask="where_not", absent=-1e30, causal=0),
]
every_case = pytest.mark.parametrize("attention", CASES, ids=range(len(CASES)))


@every_case
@pytest.mark.parametrize("kind", ["f32", "rounded", "bf16"])
def test_numpy_in_single_precision_is_within_the_bound(attention: Attention, kind: str) -> None:
    attention = of_kind(attention, kind)
    arrays = values(attention)
    wanted = reference.expected(attention, arrays)
    reference.assert_near(attention, reference.in_single_precision(attention, arrays), wanted)
    flawed = [reference.in_single_precision(attention, arrays, 1e-3 if kind == "f32" else 0.05)]
    if attention.causal != 0:
        flawed.append(reference.in_single_precision(attention, arrays, drop=True))
    for result in flawed:
        with pytest.raises(AssertionError, match="beyond the bound"):
            reference.assert_near(attention, result, wanted)


@every_case
def test_strides_find_what_transposing_finds(attention: Attention) -> None:
    region, arrays = attention.region, values(attention)
    factors = region.numbers("batch")
    assert np.prod(factors) == np.prod(region.parts[0].output.shape[:-2])
    for name, array in zip(("q", "k", "v"), arrays, strict=False):
        strides = [n * array.itemsize for n in region.numbers(f"{name}_strides")]
        flat = array.reshape(-1)[int(region.attrs.get(f"{name}_offset", 0)) :]
        _, length, size = attention.extents(name)
        seen = as_strided(flat, (*factors, length, size), strides)
        wanted = reference.logical(attention, name, array)
        np.testing.assert_array_equal(seen.reshape(wanted.shape), wanted)
    shape = (attention.batch, attention.heads, attention.m, attention.columns)
    order = np.arange(np.prod(shape)).reshape(shape)
    strides = list(region.numbers("out_strides"))
    stored = reference.as_stored(attention, order).reshape(-1)
    index = np.indices((*factors, *shape[2:])).reshape(len(strides), -1)
    np.testing.assert_array_equal(stored[np.tensordot(strides, index, 1)], order.reshape(-1))


def test_integers_are_exact_where_no_probability_lies_at_a_tie() -> None:
    attention = of_kind(case(batch=1, n=20, d=16), "int8")
    wanted = reference.expected(attention, values(attention))
    assert (wanted.bound == 0).mean() > 0.5
    assert len(np.unique(wanted.value)) > 50
    assert wanted.bound.max() < 20
