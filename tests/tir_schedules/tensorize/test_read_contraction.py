"""Blocks of TIR functions as contractions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import te, tirx

from tir_schedules.tensorize.arrangement import RefusedError
from tir_schedules.tensorize.read_contraction import read_contraction

from .programs import last_block, summed

F = "float32"


def cast(dtype: str, value: Any) -> Any:
    return tirx.Cast(dtype, value)


def test_any_order_of_indices() -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((6, 4, 5), (3, 7), lambda n, i, j, k, m: a[k, i, m, j] * b[j, m, k, n])

    found = read_contraction(last_block(body, ((3, 4, 7, 5), F), ((5, 7, 3, 6), F)))
    roles = found.contraction
    assert roles.left == ("r0", "i1", "r1", "i2")
    assert roles.right == ("i2", "r1", "r0", "i0")
    assert roles.out == ("i0", "i1", "i2")
    assert (roles.batches, roles.rows, roles.columns) == (("i2",), ("i1",), ("i0",))
    assert roles.steps == ("r0", "r1")
    assert found.left.plain and found.right.plain


@pytest.mark.parametrize("left", ["uint8", "int8"])
@pytest.mark.parametrize("right", ["uint8", "int8"])
def test_integers(left: str, right: str) -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((4, 5), (8,), lambda i, j, k: cast("int32", a[k, i]) * cast("int32", b[j, k]))

    found = read_contraction(last_block(body, ((8, 4), left), ((5, 8), right)))
    assert (found.left.dtype, found.right.dtype, found.dtype) == (left, right, "int32")


def test_bfloat16() -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((4, 5), (8,), lambda i, j, k: cast(F, a[i, k]) * cast(F, b[j, k]))

    found = read_contraction(last_block(body, ((4, 8), "bfloat16"), ((5, 8), "bfloat16")))
    assert (found.left.dtype, found.dtype) == ("bfloat16", F)


def test_axes_of_extent_1() -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((1, 4, 5), (8,), lambda n, i, j, k: a[n, i, k] * b[k, n, j])

    found = read_contraction(last_block(body, ((1, 4, 8), F), ((8, 1, 5), F)))
    assert found.left.labels == ("one 0", "i1", "r0")
    assert found.right.labels == ("r0", None, "i2")
    assert found.contraction.out == ("one 0", "i1", "i2")


@pytest.mark.parametrize(
    ("left", "right", "roles"),
    [
        ((1, 4, 8), (8, 5), (("one 0", "i1"), ())),
        ((1, 4, 8), (1, 8, 5), (("i1",), ("one 0",))),
        ((4, 8), (1, 8, 5), (("i1",), ())),
    ],
    ids=["a row", "a batch", "of the right operand"],
)
def test_a_batch_of_one(left: tuple[int, ...], right: tuple[int, ...], roles: Any) -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        first, second = ((0,) * (len(shape) - 2) for shape in (left, right))
        return summed((1, 4, 5), (8,), lambda _n, i, j, k: a[(*first, i, k)] * b[(*second, k, j)])

    found = read_contraction(last_block(body, (left, F), (right, F))).contraction
    assert (found.rows, found.batches) == roles


def test_windows_are_gathered() -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((4, 9), (3, 8), lambda i, j, u, c: a[i * 2 + u, c] * b[u, c, j])

    found = read_contraction(last_block(body, ((9, 8), F), ((3, 8, 9), F)))
    assert not found.left.plain and found.right.plain
    assert found.contraction.rows == ("i0",) and found.contraction.steps == ("r0", "r1")


def test_a_part_of_a_tensor_is_gathered() -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((4, 9), (8,), lambda i, j, c: a[i, c] * b[c, j])

    assert not read_contraction(last_block(body, ((5, 8), F), ((8, 9), F))).left.plain


def _plain(term: Callable[..., Any], *inputs: tuple[tuple[int, ...], str]) -> Any:
    return last_block(lambda *given: summed((4, 5), (8,), lambda *p: term(*given, *p)), *inputs)


A, B = ((4, 8), F), ((8, 5), F)
INT8 = ((4, 8), "int8"), ((8, 5), "int8")


@pytest.mark.parametrize(
    ("nest", "reason"),
    [
        (lambda: last_block(lambda a: te.compute((4,), lambda i: a[i, 0] + 1.0), A), "no sum"),
        (lambda: _plain(lambda a, b, i, j, k: a[i, k] + b[k, j], A, B), "not of products"),
        (lambda: _plain(lambda a, b, i, j, k: a[i, k] * tirx.exp(b[k, j]), A, B), "tensors"),
        (lambda: _plain(lambda a, b, i, j, k: a[i, k] * b[k, j] * a[i, 0], A, B), "tensors"),
        (lambda: _plain(lambda a, b, i, j, k: a[i, k] * b[k, j], *INT8), "int8 by int8, summed"),
        (
            lambda: _plain(lambda a, b, i, j, k: cast("int32", a[i, k] * b[k, j]), *INT8),
            "products of int8, summed in int32",
        ),
        (
            lambda: _plain(
                lambda a, b, i, j, k: cast(F, a[i, k]) * cast(F, b[k, j]),
                *(((4, 8), "float64"), ((8, 5), "float64")),
            ),
            "tensors",
        ),
        (
            lambda: _plain(lambda a, b, n, i, j, k: a[i, n[k]] * b[k, j], A, B, ((8,), "int32")),
            "indices that are read from a tensor",
        ),
        (
            lambda: last_block(
                lambda a, b: summed((4, 5), (8, 3), lambda i, j, k, n: a[i, k] * b[k, j]), A, B
            ),
            "an axis that no operand has",
        ),
        (
            lambda: last_block(
                lambda a, b: summed((4, 5), (1,), lambda i, j, k: a[i] * b[j]),
                *(((4,), F), ((5,), F)),
            ),
            "no sum",
        ),
    ],
)
def test_refusals(nest: Callable[[], Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        read_contraction(nest())


def test_a_maximum_is_no_sum() -> None:
    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, 8), "k")
        return te.compute((4, 5), lambda i, j: te.max(a[i, k] * b[k, j], axis=k))

    with pytest.raises(RefusedError, match="starts with"):
        read_contraction(last_block(body, A, B))
