"""Inputs that only our templates read are used in place."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_hybrid
from microkernels.isa import host_isa
from relay_passes.ir.functions import UNALIGNED
from tests.relay_passes.graphs import constant, module
from tvm_hybrid.explain.program_facts import program_facts

F = "float32"
op = relax.op


def at_offset(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy whose address is `offset` bytes past a multiple of 64."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    view = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def session(body) -> tvm_hybrid.InferenceSession:
    return tvm_hybrid.InferenceSession(module(body, ((64, 96), F)), num_threads=1)


def matmul(x):
    return op.matmul(op.reshape(x, (8, 8, 96)), constant(96, 40))


def cumsum_of_a_view(x):
    return op.cumsum(op.reshape(x, (8, 8, 96)), 1)


def elementwise_and_matmul(x):
    return op.add(op.matmul(op.tanh(x), constant(96, 96)), x)


@pytest.mark.skipif(
    host_isa().level == 0, reason="the scalar instruction set has no vectors to align"
)
@pytest.mark.parametrize(
    ("body", "anywhere"),
    [
        (matmul, True),
        (elementwise_and_matmul, True),
        (op.tanh, True),
        (cumsum_of_a_view, True),
        (lambda x: op.reshape(x, (96, 64)), True),
        (lambda x: [op.tanh(x), x], True),
    ],
)
def test_what_may_lie_anywhere_is_known(body, anywhere: bool) -> None:
    assert session(body).executable.manifest.unaligned_inputs == (anywhere,)


@pytest.mark.parametrize("anywhere", [True, False])
def test_a_kernel_that_wants_alignment_says_so(anywhere: bool) -> None:
    """Kernels with tiles need alignment."""
    mod = relax.transform.LegalizeOps()(module(op.tanh, ((64, 96), F)))
    (gvar,) = [each for each in mod.functions if each.name_hint != "main"]
    if anywhere:
        mod.update_func(gvar, mod[gvar].with_attr(UNALIGNED, True))
    assert program_facts(mod).unaligned_inputs == (anywhere,)


@pytest.mark.sampled
@pytest.mark.parametrize("offset", [0, 4, 16, 60])
@pytest.mark.parametrize("body", [matmul, elementwise_and_matmul, cumsum_of_a_view])
def test_every_address_gives_the_same_result(body, offset: int) -> None:
    made = session(body)
    (name,) = (info.name for info in made.get_inputs())
    x = np.random.default_rng(0).standard_normal((64, 96)).astype(F)
    expected = made.run(None, {name: at_offset(x, 0)})[0]
    np.testing.assert_array_equal(made.run(None, {name: at_offset(x, offset)})[0], expected)
    read_only = at_offset(x, offset)
    read_only.flags.writeable = False
    np.testing.assert_array_equal(made.run(None, {name: read_only})[0], expected)
    strided = np.asfortranarray(x)
    np.testing.assert_array_equal(made.run(None, {name: strided})[0], expected)


def test_an_input_that_is_an_output_is_not_shared() -> None:
    mod = module(lambda x: [op.matmul(x, constant(96, 40)), op.reshape(x, (96, 64))], ((64, 96), F))
    made = tvm_hybrid.InferenceSession(mod, num_threads=1)
    (name,) = (info.name for info in made.get_inputs())
    x = at_offset(np.ones((64, 96), F), 16)
    view = made.run(None, {name: x})[1]
    x[...] = 0
    assert view.all()
