"""Models that TVM has legalised before compilation get equal kernels and equal results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from tvm import relax

import tvm_hybrid
from relay_passes.ir.decisions import TENSORIZE
from tests.relay_passes.graphs import module, run
from tests.relay_passes.lift.test_lift_programs import legalized

from .cnn_blocks import enlarging, made, residual
from .transformers import Sizes, bert

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": lambda: bert(Sizes(batch=1, layers=1)),
    "residual": lambda: made(residual)[1],
    "enlarging": lambda: made(enlarging)[1],
}


def kernels(executable: tvm_hybrid.Executable) -> Counter[tuple[str, str]]:
    """Counts the regions by operators and microkernel."""
    return Counter((d.op, d.kernel) for d in executable.explain() if d.taken and d.kernel)


def parts(executable: tvm_hybrid.Executable) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Counts regions by first operator and microkernel, and the operators fused behind."""
    taken = [(*d.op.split(" + "), d.kernel) for d in executable.explain() if d.taken and d.kernel]
    fused = Counter(operator for _, *behind, _ in taken for operator in behind)
    return Counter((anchor, kernel) for anchor, *_, kernel in taken), fused


@pytest.mark.sampled
@pytest.mark.parametrize("stage", ["legalised", "fused"])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_kernels(name: str, stage: str) -> None:
    mod = tvm_hybrid.import_onnx(MODELS[name]()).mod
    plain = tvm_hybrid.compile(mod, num_threads=1)
    legal = tvm_hybrid.compile(legalized(mod, stage), num_threads=1)
    if (name, stage) == ("residual", "fused"):
        # TVM's order decides which of two convolutions adds the other's result.
        assert parts(legal) == parts(plain)
    else:
        assert kernels(legal) == kernels(plain)
    notes = [d for d in legal.explain() if d.op == TENSORIZE]
    assert notes and all(note.taken for note in notes)
    rng = np.random.default_rng(0)
    feeds = []
    for parameter in mod["main"].params:
        shape, dtype = [int(e) for e in parameter.ty.shape.values], str(parameter.ty.dtype)
        feeds.append(
            rng.integers(0, 2, shape, dtype)
            if dtype.startswith("int")
            else rng.standard_normal(shape).astype(dtype)
        )
    results = [executable.run(*feeds)[0].numpy() for executable in (plain, legal)]
    np.testing.assert_allclose(results[1], results[0], 1e-5, 1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_keeps_its_own_rule_for_nan(threads: int) -> None:
    """TVM's ArgMin kernel continues after a NaN; our kernel of the operator stops at it."""
    x = np.random.default_rng(3).standard_normal((3000, 5)).astype(np.float32)
    x[[7, 1200, 2999], [0, 1, 2]] = np.nan
    mod = module(lambda x: relax.op.argmin(x, axis=0), (x.shape, "float32"))
    (wanted,) = run(legalized(mod), [x])
    legal = tvm_hybrid.compile(legalized(mod), num_threads=threads)
    np.testing.assert_array_equal(legal.run(x)[0].numpy(), wanted)
    plain = tvm_hybrid.compile(mod, num_threads=threads)
    np.testing.assert_array_equal(plain.run(x)[0].numpy(), x.argmin(axis=0))
    assert wanted.tolist() != x.argmin(axis=0).tolist()
