"""Einsums of two tensors become products."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.decompose_einsum import decompose_einsum
from tests.relay_passes.graphs import Body, module, run

op = relax.op
SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6, "e": 7}
RNG = np.random.default_rng(0)


def einsum(text: str) -> Body:
    return lambda x, y: op.einsum((x, y), text)


def shapes(text: str) -> list[tuple[int, ...]]:
    inputs = text.split("->")[0].split(",")
    return [tuple(SIZES[letter] for letter in each) for each in inputs]


def test_a_product_of_each_head() -> None:
    def after(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        heads = op.matmul(op.permute_dims(x, [1, 0, 2]), w)
        return op.permute_dims(heads, [1, 0, 2])

    types = [(shape, "float32") for shape in shapes("bhd,hde")]
    found = decompose_einsum()(module(einsum("bhd,hde->bhe"), *types))
    assert_structural_equal(found, module(after, *types))


@pytest.mark.parametrize(
    "text",
    [
        *("ij,jd->id", "ij,dj->di", "bihd,bjhd->bhij", "bhij,bjhd->bihd", "bd,e->bde"),
        *("bhi,bhi->bhi", "bi,bi->b", "ijb,jd->id", "bij,dij->bd", "i,j->ij", "i,i->"),
    ],
)
def test_values(text: str) -> None:
    types = [(shape, "float32") for shape in shapes(text)]
    mod = decompose_einsum()(module(einsum(text), *types))
    assert "einsum" not in mod.script()
    inputs = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes(text)]
    # Sums of at most 20 products of a few units.
    np.testing.assert_allclose(run(mod, inputs)[0], np.einsum(text, *inputs), atol=1e-5)


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("ii,ij->ij", (4, 4), (4, 5)),
        ("...i,ij->...j", (2, 4), (4, 5)),
        ("bi,ij->bj", (2, 1), (4, 5)),
    ],
)
def test_others_stay(text: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    mod = module(einsum(text), (first, "float32"), (second, "float32"))
    assert_structural_equal(decompose_einsum()(mod), mod)
