"""The attention template against the definition: lengths, head sizes, layouts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.attention_checks import best, check, kernel_of, result_of
from tests.tir_schedules.attention_reference import assert_near, expected, in_single_precision
from tests.tir_schedules.attention_regions import case, of_kind, values

FLOATS = ("f32", "bf16", "rounded")

# Queries, keys, size of a head: every length and size once, and pairs of different ones.
SIZES = [
    (1, 1, 16),
    (7, 7, 17),
    (127, 127, 20),
    (129, 129, 32),
    (1000, 1000, 16),
    (7, 1000, 64),
    (1000, 7, 80),
    (129, 127, 96),
    (33, 129, 128),
    (20, 40, 256),
]


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(SIZES)), ids=map(str, SIZES))
def test_lengths_and_head_sizes(number: int) -> None:
    """Buffers end at an unmapped page, then begin after one."""
    m, n, d = SIZES[number]
    for kind in ("f32", "bf16") if number % 2 else ("f32",):
        attention = of_kind(case(batch=1, m=m, n=n, d=d, mask=("", "keys")[number % 2]), kind)
        check(attention, at_end=True)
        check(attention, at_end=False, arrays=values(attention, seed=1))


def test_columns_of_v_unlike_those_of_k() -> None:
    check(case(m=9, n=20, d=17, e=40))
    check(of_kind(case(m=9, n=21, d=64, e=1, batch=1), "bf16"), at_end=False)


# Layouts of q, k, v and the result; heads; heads of q for one of k and v. Pairwise.
LAYOUTS = [
    (("bshd", "bshd", "bshd", "bshd"), 4, 2),
    (("bshd", "bhsd", "bhds", "bhsd"), 2, 1),
    (("bhsd", "bshd", "bhsd", "bshd"), 4, 4),
    (("bhsd", "bhds", "bshd", "bhsd"), 6, 2),
    (("packed", "packed", "packed", "bshd"), 3, 1),
    (("packed", "packed", "packed", "bshd"), 4, 2),
    (("bshd", "packed", "packed", "bshd"), 2, 2),
    (("bhds", "bhds", "bhsd", "bshd"), 2, 1),
]


DECODING = [
    (1, 1, "f32"),
    (16, 4, "f32"),
    (17, 2, "bf16"),
    (127, 2, "f32"),
    (257, 1, "f32"),
    (600, 1, "bf16"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=["-".join(x[0]) for x in LAYOUTS])
def test_operands_are_read_and_written_where_they_are_stored(number: int) -> None:
    layouts, heads, group = LAYOUTS[number]
    attention = case(layouts=layouts, heads=heads, group=group, m=19, n=19, d=24)
    kind = FLOATS[(0, 1, 0, 2)[number % 4]]
    check(of_kind(attention, kind), at_end=number < 4)


def test_batch_and_heads_may_be_one_dimension() -> None:
    check(case(flat=True, mask="heads", batch=2, heads=3, m=10, n=18))


@pytest.mark.sampled
@pytest.mark.parametrize(("n", "group", "kind"), DECODING)
def test_decoding(n: int, group: int, kind: str) -> None:
    """One query a head; several heads may share keys."""
    attention = case(batch=1, heads=4, group=group, m=1, n=n, d=64, mask="keys", layout="bhsd")
    check(of_kind(attention, kind), at_end=n % 2 == 0)


@pytest.mark.parametrize("n", [64, 1000])
def test_rounding_errors_are_those_of_single_precision(n: int) -> None:
    """Bounds assume the worst case; on average the error is at most twice NumPy's in f32."""
    attention = case(batch=1, m=33, n=n, d=64)
    arrays = values(attention)
    result, wanted = check(attention, arrays=arrays)
    plain = in_single_precision(attention, arrays)
    ours, theirs = (np.sqrt(np.mean((x - wanted.value) ** 2)) for x in (result, plain))
    assert ours <= 2 * theirs


def test_a_kernel_keeps_nothing_from_one_call_to_the_next() -> None:
    """Each call packs its buffers anew: other values give their own result."""
    attention = case(batch=1, m=10, n=30, d=16)
    kernel = kernel_of(attention, best("f32"))
    for seed in (0, 1, 0):
        arrays = values(attention, seed)
        result = result_of(attention, kernel, arrays, at_end=True)
        assert_near(attention, result, expected(attention, arrays))
