"""Branches with products become functions."""

from __future__ import annotations

from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.canonicalize.functions import outline_branches


@I.ir_module
class Before:
    @R.function
    def main(
        x: R.Tensor((4, 4), "float32"), c: R.Tensor((), "bool"), d: R.Tensor((), "bool")
    ) -> R.Tensor((4, 4), "float32"):
        h = R.exp(x)
        if c:
            if d:
                p = R.matmul(h, x)
                y = R.nn.relu(p)
            else:
                y = R.tanh(x)
            z = y
        else:
            z = R.abs(x)
        return z


@I.ir_module
class After:
    @R.function(private=True)
    def branch(h: R.Tensor((4, 4), "float32"), x: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (4, 4), "float32"
    ):
        p = R.matmul(h, x)
        y = R.nn.relu(p)
        return y

    @R.function
    def main(
        x: R.Tensor((4, 4), "float32"), c: R.Tensor((), "bool"), d: R.Tensor((), "bool")
    ) -> R.Tensor((4, 4), "float32"):
        cls = After
        h = R.exp(x)
        if c:
            if d:  # noqa: SIM108
                y = cls.branch(h, x)
            else:
                y = R.tanh(x)
            z = y
        else:
            z = R.abs(x)
        return z


def test_the_innermost_branch_with_a_product() -> None:
    assert_structural_equal(outline_branches()(Before), After)


def test_without_products_nothing_changes() -> None:
    once = outline_branches()(Before)
    assert outline_branches()(once).same_as(once)
