"""How axes become those of matrix products, and which copies that needs."""

from __future__ import annotations

import pytest

from tir_schedules.core.size import SymbolicSize
from tir_schedules.tensorize.arrangement import Contraction, arrangements, in_memory, is_view

from .test_contraction import einsum


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,jk->ik",
        "ji,kj->ik",
        "bqhd,bkhd->bhqk",
        "bhqk,bkhd->bqhd",
        "abcd,cdef->abef",
        "abc,bcd->ad",
    ],
)
def test_nothing_is_copied(subscripts: str) -> None:
    best = arrangements(einsum(subscripts, 32))[0]
    assert (best.copied, best.swapped) == ((), False)
    assert best.left == (*best.batches, *best.rows, best.steps)
    assert best.right == (*best.batches, best.steps, best.columns)


def test_a_result_in_the_other_order_swaps_the_operands() -> None:
    best, other = arrangements(einsum("ij,jk->ki", 32))
    assert best.swapped and not best.copied
    assert other.copied == ("result",) and other.cycles > best.cycles


def test_the_smaller_operand_is_copied() -> None:
    extents = {"a": 64, "b": 16, "c": 16, "d": 512}
    best, *others = arrangements(Contraction(("a", "b", "c"), ("c", "b", "d"), ("a", "d"), extents))
    assert best.copied == ("left",) and best.steps == ("c", "b")
    assert ("right",) in [each.copied for each in others]


def test_axes_apart_are_copied() -> None:
    best = arrangements(einsum("acbd,cedf->abef"))[0]
    assert best.copied == ("left", "right")
    assert (best.columns, best.steps) == (("e", "f"), ("c", "d"))


def test_a_constant_is_packed_on_the_right() -> None:
    given = einsum("oc,nhwc->nhwo", 32)
    assert not arrangements(given, (False, True))[0].copied
    best = arrangements(given, (True, False))[0]
    assert best.swapped and not best.copied
    apart = arrangements(einsum("coa,nhwca->nhwo", 32), (True, False))[0]
    assert apart.swapped and not apart.copied  # copied at compile time


def test_a_narrow_result_is_written_with_the_long_axis_last() -> None:
    extents = {"i": 1024, "j": 64, "k": 2}
    best = arrangements(Contraction(("i", "j"), ("k", "j"), ("k", "i"), extents))[0]
    assert best.swapped and best.columns == ("i",)


def test_dynamic_sizes() -> None:
    extents = {"i": SymbolicSize.of("n"), "j": 64, "k": 32}
    best = arrangements(Contraction(("i", "j"), ("k", "j"), ("i", "k"), extents))[0]
    assert (best.swapped, best.copied) == (False, ())


def test_views() -> None:
    given = einsum("abc,cd->abd")
    assert is_view(given, ("a", "b", "c"), (("c",), ("a", "b"), ()))
    assert not is_view(given, ("a", "b", "c"), (("a", "c"), ("b",)))
    assert not is_view(given, ("a", "b"), (("b", "a"),))


def test_an_axis_of_one_lies_anywhere() -> None:
    extents = {"n": 1, "c": 64, "h": 28, "w": 28, "o": 128}
    labels = tuple("nchw"), tuple("oc"), tuple("nohw")
    best = arrangements(Contraction(*labels, extents))[0]
    assert best.swapped and not best.copied
    assert best.columns == ("n", "h", "w")
    assert in_memory(best.contraction, labels[0], best.right) == [("c",), ("n", "h", "w")]
