"""Einsums become matmuls with equal results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.ir.decisions import TENSORIZE, DecisionLog
from relay_passes.lift.lift_programs import lift_programs
from tests.examples import examples
from tests.relay_passes.graphs import constant, module, run

op = relax.op
F = "float32"
Shape = tuple[int, ...]


def einsum(subscripts: str, *shapes: Shape, dtype: str = F) -> IRModule:
    return module(
        lambda *given: op.einsum(given, subscripts), *((shape, dtype) for shape in shapes)
    )


def lifted(mod: IRModule) -> tuple[IRModule, DecisionLog]:
    decisions: DecisionLog = []
    return lift_programs(decisions=decisions)(mod), decisions


def operators(mod: IRModule) -> list[str]:
    bindings = [b for block in mod["main"].body.blocks for b in block.bindings]
    return [str(b.value.op.name).removeprefix("relax.") for b in bindings]


def test_attention() -> None:
    found, decisions = lifted(einsum("bqhd,bkhd->bhqk", (2, 5, 3, 8), (2, 7, 3, 8)))

    def after(q: relax.Expr, k: relax.Expr) -> relax.Expr:
        turned = op.permute_dims(q, [0, 2, 1, 3]), op.permute_dims(k, [0, 2, 3, 1])
        return op.matmul(*turned, out_dtype=F)

    assert_structural_equal(found, module(after, ((2, 5, 3, 8), F), ((2, 7, 3, 8), F)))
    (decision,) = decisions
    assert (decision.op, decision.taken) == (TENSORIZE, True)
    assert "batches b h, rows q, columns k, steps d; nothing copied" in decision.reason
    assert "of 2 candidates the next costs" in decision.reason


def test_a_constant_goes_to_the_right() -> None:
    mod = module(lambda x: op.einsum([constant(8, 5), x], "ij,kj->ki"), ((4, 5), F))
    found, (decision,) = lifted(mod)
    assert operators(found) == ["permute_dims", "matmul"]
    product = found["main"].body.blocks[0].bindings[1].value
    assert product.args[0].same_as(found["main"].params[0])
    assert "operands swapped" in decision.reason


def test_three_operands_are_multiplied_two_at_a_time() -> None:
    # (ab bc) cd: 2 * 3 * 50 + 2 * 50 * 4 multiplications, fewer than ab (bc cd).
    found, (decision,) = lifted(einsum("ab,bc,cd->ad", (2, 3), (3, 50), (50, 4)))
    assert operators(found) == ["matmul", "matmul"]
    first = found["main"].body.blocks[0].bindings[0].value
    assert [tuple(map(int, x.ty.shape)) for x in first.args] == [(2, 3), (3, 50)]
    assert "; then " in decision.reason


def test_a_bilinear_form_ends_element_by_element() -> None:
    shapes = (4, 5), (6, 5, 7), (4, 7)
    found, (decision,) = lifted(einsum("bi,oij,bj->bo", *shapes))
    assert operators(found)[-2:] == ["multiply", "sum"]
    assert "element by element: a matrix by a vector" in decision.reason
    arrays = [np.random.default_rng(i).standard_normal(s).astype(F) for i, s in enumerate(shapes)]
    expected = np.einsum("bi,oij,bj->bo", *(x.astype(np.float64) for x in arrays))
    np.testing.assert_allclose(run(found, arrays)[0], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "wanted"),
    [
        # k is in all three: c first becomes a factor of the smaller one.
        ("ik,kj,k->ij", ((8, 5), (5, 7), (5,)), ["multiply", "matmul"]),
        # j is not summed elsewhere: it is a factor of the result.
        ("ik,kj,j->ij", ((8, 5), (5, 7), (7,)), ["matmul", "multiply"]),
    ],
)
def test_an_operand_that_is_a_factor(
    subscripts: str, shapes: tuple[Shape, ...], wanted: list[str]
) -> None:
    found, (decision,) = lifted(einsum(subscripts, *shapes))
    assert [name for name in operators(found) if name != "reshape"] == wanted
    assert "element by element: it sums no axis" in decision.reason
    arrays = [np.random.default_rng(i).standard_normal(s).astype(F) for i, s in enumerate(shapes)]
    np.testing.assert_allclose(run(found, arrays)[0], np.einsum(subscripts, *arrays), atol=1e-4)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "reason"),
    [
        ("i,j->ij", ((4,), (5,)), "an outer product"),
        ("bi,bi->b", ((4, 5), (4, 5)), "products of vectors"),
        ("ij,j->i", ((4, 5), (5,)), "a matrix by a vector"),
        ("ii,ij->j", ((4, 4), (4, 5)), "a diagonal"),
        ("i,j,k->ijk", ((4,), (5,), (3,)), "an outer product"),
        ("bi,bi,bi->b", ((4, 5), (4, 5), (4, 5)), "products of vectors"),
        ("...ij,...jk->...ik", ((2, 4, 5), (1, 5, 3)), "has the extents 2 and 1"),
        ("ij->i", ((4, 5),), "1 operands"),
    ],
)
def test_refusals_say_why(subscripts: str, shapes: tuple[Shape, ...], reason: str) -> None:
    mod = einsum(subscripts, *shapes)
    found, (decision,) = lifted(mod)
    assert_structural_equal(found, mod)
    assert (decision.op, decision.taken) == (TENSORIZE, False)
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("...ij,...jk->...ik", ((2, 3, 4, 5), (2, 3, 5, 6))),
        ("...ij,...jk->...ik", ((2, 3, 4, 5), (3, 5, 6))),
        ("i...j,jk", ((4, 2, 3, 5), (5, 6))),
        ("...ij,jk...->k...i", ((2, 4, 5), (5, 6, 2))),
    ],
)
def test_an_ellipsis(subscripts: str, shapes: tuple[Shape, ...]) -> None:
    found, (decision,) = lifted(einsum(subscripts, *shapes))
    assert decision.taken and "einsum" not in operators(found)
    arrays = [np.random.default_rng(i).standard_normal(s).astype(F) for i, s in enumerate(shapes)]
    expected = np.einsum(subscripts, *(x.astype(np.float64) for x in arrays))
    np.testing.assert_allclose(run(found, arrays)[0], expected, atol=1e-4)


def test_types_that_no_kernel_multiplies() -> None:
    _, (decision,) = lifted(einsum("ij,jk->ik", (4, 5), (5, 3), dtype="float64"))
    assert decision.reason == "float64: no kernel multiplies that"


@st.composite
def einsums(draw: st.DrawFn) -> tuple[str, tuple[Shape, ...]]:
    """Subscripts of up to five axes for each tensor, and shapes."""
    letters = list("abcdefg")[: draw(st.integers(2, 7))]
    extents = {letter: draw(st.integers(1, 5)) for letter in letters}
    operands = [
        draw(st.lists(st.sampled_from(letters), min_size=1, max_size=5, unique=True))
        for _ in range(draw(st.sampled_from([2, 2, 2, 3])))
    ]
    used = sorted({letter for labels in operands for letter in labels})
    out = draw(st.lists(st.sampled_from(used), max_size=5, unique=True))
    text = ",".join("".join(labels) for labels in operands) + "->" + "".join(out)
    return text, tuple(tuple(extents[x] for x in labels) for labels in operands)


@examples(60, deadline=None)
@given(einsums(), st.integers(0, 2**32 - 1))
def test_random_einsums(drawn: tuple[str, tuple[Shape, ...]], seed: int) -> None:
    subscripts, shapes = drawn
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-4, 5, shape).astype(F) for shape in shapes]
    found, (decision,) = lifted(einsum(subscripts, *shapes))
    assert (op_names := operators(found)) and decision.taken == ("einsum" not in op_names)
    if not decision.taken:
        return
    # Small integers: sums of their products are exact in float32, in any order.
    expected = np.einsum(subscripts, *(x.astype(np.int64) for x in arrays))
    np.testing.assert_array_equal(run(found, arrays)[0], expected)


def test_float16_is_widened_later() -> None:
    found, (decision,) = lifted(einsum("ij,jk->ik", (4, 5), (5, 3), dtype="float16"))
    assert decision.taken and operators(found).count("matmul") == 1
