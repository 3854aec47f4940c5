"""A lowered `main` as one TIR function, and what cannot become one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax, tirx

from microkernels.base.errors import CompileError
from tests.relay_passes.graphs import constant, module
from tests.relay_passes.lift.test_lift_programs import legalized
from tvm_hybrid.tvm_routes.tensorized import as_one_kernel

op = relax.op
X = ((4, 6), "float32")


def buffers(count: int) -> list[tirx.Var]:
    return [tirx.decl_buffer(*X, f"b{number}") for number in range(count)]


def test_what_lies_between_kernels_is_the_functions_own() -> None:
    mod = legalized(module(lambda x: op.exp(op.negative(x)), X))
    source, result = buffers(2)
    made = as_one_kernel(mod, [source], [result])
    assert made.params[0].same_as(source) and made.params[1].same_as(result)
    assert len(made.params) == 2 and len(made.body.block.alloc_buffers) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda x: op.add(x, constant(4, 6)), "reads a constant"),
        (lambda x: op.exp(x), "is no call of a kernel"),
    ],
)
def test_refusals(body: Callable[..., relax.Expr], reason: str) -> None:
    mod = module(body, X)
    mod = legalized(mod) if "constant" in reason else mod
    with pytest.raises(CompileError, match=reason):
        as_one_kernel(mod, buffers(1), buffers(1))


def test_a_result_that_is_an_input() -> None:
    mod = module(lambda x: op.reshape(x, (6, 4)), X)
    with pytest.raises(CompileError, match="a result that is an input"):
        as_one_kernel(mod, buffers(1), buffers(1))
