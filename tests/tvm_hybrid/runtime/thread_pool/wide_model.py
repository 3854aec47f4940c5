"""A model large enough to run on several threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax

import tvm_hybrid

ROWS, WIDTH = 64, 256
# Small integers: products and sums are exact.
WEIGHT = np.random.default_rng(0).integers(-3, 4, (WIDTH, WIDTH)).astype(np.float32)
X = np.random.default_rng(1).integers(-3, 4, (ROWS, WIDTH)).astype(np.float32)
EXPECTED = X @ WEIGHT


def wide_module() -> IRModule:
    """x[ROWS, WIDTH] -> x @ WEIGHT."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, WIDTH), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, relax.const(WEIGHT)))
        builder.emit_func_output(y)
    return builder.get()


def wide_session(**options: Any) -> tvm_hybrid.InferenceSession:
    """A session of the model, on two threads by default."""
    return tvm_hybrid.InferenceSession(wide_module(), **{"num_threads": 2, **options})


def check(session: tvm_hybrid.InferenceSession) -> None:
    """Runs a session once."""
    (y,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, EXPECTED)
