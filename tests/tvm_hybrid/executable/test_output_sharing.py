"""Which outputs may share memory that outlives the call."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax, topi

import tvm_hybrid
from tests.tvm_hybrid.small_models import mlp, several
from tvm_hybrid.errors import FeedError
from tvm_hybrid.explain.program_facts import program_facts


def module_of(kind: str) -> IRModule:
    """x: float32[4] -> one or two outputs that are not direct results of a kernel."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.add(x, relax.const(1.0, "float32")))
            weight = relax.const(np.arange(4, dtype=np.float32))
            outputs = {
                "input": x,
                "weight": weight,
                "twice": relax.Tuple([y, y]),
                "view of a result": relax.op.reshape(y, (2, 2)),
                "view of a view": relax.op.expand_dims(relax.op.reshape(x, (2, 2)), 0),
            }
            result = builder.emit_output(outputs[kind])
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("kind", ["input", "weight", "twice", "view of a result", "view of a view"])
def test_a_session_hands_out_memory_of_its_own(kind: str) -> None:
    session = tvm_hybrid.InferenceSession(module_of(kind), num_threads=1)
    x = np.arange(4, dtype=np.float32)
    first = session.run(None, {"x": x})
    kept = [array.copy() for array in first]
    second = session.run(None, {"x": x})
    arrays = [*first, *second, x]
    for i, a in enumerate(arrays):
        assert not any(np.shares_memory(a, b) for b in arrays[i + 1 :])
    for array in first:
        array[...] = -7
    for array, expected in zip(session.run(None, {"x": x}), kept, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_value_that_needs_no_input_is_new_memory_in_every_run() -> None:
    """The session's short way serves this model and a model that returns its input."""
    given = np.arange(5000.0, dtype=np.float32)
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(relax.const(given))
        builder.emit_func_output(result)
    for mod, fed in ((builder.get(), {}), (module_of("input"), {"x": given[:4]})):
        session = tvm_hybrid.InferenceSession(mod, num_threads=1)
        first = session.run(None, fed)[0]
        assert session.run.__qualname__.startswith("_short_")
        second = session.run(None, fed)[0]
        second[...] = -7
        wanted = given[: len(first)]
        for array in (first, session.run(None, fed)[0], session.run(["output"], fed)[0]):
            np.testing.assert_array_equal(array, wanted)
        with pytest.raises(FeedError, match="'y'"):
            session.run(None, {**fed, "y": given})


def test_a_kernel_that_only_reshapes_may_become_a_view() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            viewed = builder.emit_output(builder.call_te(topi.reshape, x, (2, 2)))
            computed = builder.emit_output(builder.call_te(topi.negative, x))
        builder.emit_func_output(relax.Tuple([viewed, computed]))
    assert program_facts(builder.get()).shared_outputs == (True, False)


def test_results_of_kernels_are_not_copied() -> None:
    assert mlp().manifest.shared_outputs == (False,)
    assert several().manifest.shared_outputs == (False, False, True, True)


def test_results_of_one_kernel_are_not_copied_unless_one_is_returned_twice() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit(builder.call_te(lambda a: [a + 1.0, a * 2.0], x))
            first, again, second = (
                builder.emit_output(relax.TupleGetItem(made, index)) for index in (0, 0, 1)
            )
        builder.emit_func_output(relax.Tuple([first, again, second]))
    assert program_facts(builder.get()).shared_outputs == (True, True, False)
