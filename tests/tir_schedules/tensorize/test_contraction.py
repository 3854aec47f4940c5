"""Roles of the axes of a contraction, and which contractions are refused."""

from __future__ import annotations

import pytest

from tir_schedules.tensorize.arrangement import Contraction, RefusedError, check


def einsum(subscripts: str, extent: int = 4) -> Contraction:
    """A contraction from its subscripts, all axes of one extent."""
    inputs, out = subscripts.split("->")
    left, right = inputs.split(",")
    extents = dict.fromkeys(left + right + out, extent)
    return Contraction(tuple(left), tuple(right), tuple(out), extents)


def test_roles() -> None:
    found = einsum("bhqd,bkhd->bhqk")
    check(found)
    roles = (found.batches, found.rows, found.columns, found.steps)
    assert roles == (("b", "h"), ("q",), ("k",), ("d",))
    assert found.text() == "batches b h, rows q, columns k, steps d"
    swapped = found.swapped()
    assert (swapped.rows, swapped.columns) == (("k",), ("q",))
    assert found.size(("q", "k")) == 16


def test_axes_of_one_operand_alone_are_summed_first() -> None:
    found = einsum("aij,jkb->ik")
    assert found.alone == (("a",), ("b",))
    inner = found.without_alone()
    assert (inner.left, inner.right) == (("i", "j"), ("j", "k"))
    assert inner.alone == ((), ())


@pytest.mark.parametrize(
    ("subscripts", "reason"),
    [
        ("i,j->ij", "an outer product"),
        ("bi,bj->bij", "an outer product"),
        ("bi,bi->b", "products of vectors"),
        ("bij,bj->bi", "a matrix by a vector"),
        ("bj,bij->bi", "a matrix by a vector"),
        ("ij,j->i", "a matrix by a vector"),
        ("ii,ij->j", "stands twice"),
        ("ij,jk->iz", "the axis z of the result"),
    ],
)
def test_refusals(subscripts: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        check(einsum(subscripts))


def test_a_constant_matrix_is_packed_beforehand() -> None:
    check(einsum("j,ji->i"), (False, True))
    check(einsum("ij,j->i"), (True, False))
    for constants in ((False, False), (True, False)):
        with pytest.raises(RefusedError, match="a matrix by a vector"):
            check(einsum("j,ji->i"), constants)
