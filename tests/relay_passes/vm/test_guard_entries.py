"""Entries first call a guard, once."""

from __future__ import annotations

import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from relay_passes.vm.entries import guard_entries


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        return y

    @R.function(private=True)
    def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function
    def outside(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        R.func_attr({"Codegen": "some"})
        return x


@I.ir_module
class After:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        _ = R.call_packed("check", ty_args=(R.Tuple,))
        with R.dataflow():
            y = R.exp(x)
            R.output(y)
        return y

    @R.function(private=True)
    def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x

    @R.function
    def outside(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        R.func_attr({"Codegen": "some"})
        return x


def guards(mod: IRModule) -> list[str]:
    """The external functions that `main` calls, in order."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [value.op for value in values if isinstance(value, relax.Call)]
    return [str(op.global_symbol) for op in calls if isinstance(op, relax.ExternFunc)]


def test_entries_alone_call_it() -> None:
    assert_structural_equal(guard_entries("check")(Before), After)


def test_a_second_time_nothing_changes() -> None:
    assert_structural_equal(guard_entries("check")(After), After)


@pytest.mark.parametrize("clean", ["DeadCodeElimination", "CanonicalizeBindings", "FuseOps"])
def test_passes_keep_it(clean: str) -> None:
    guarded = relax.transform.LegalizeOps()(guard_entries("check")(Before))
    assert guards(getattr(relax.transform, clean)()(guarded)) == ["check"]


def test_another_guard_is_called_as_well() -> None:
    assert guards(guard_entries("other")(After)) == ["other", "check"]
