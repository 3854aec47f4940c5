"""Runs one program with data-dependent output sizes on many feeds, and ONNX Runtime too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import ml_dtypes
import numpy as np

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

BFLOAT16 = ml_dtypes.bfloat16
Feeds = dict[str, np.ndarray]


def session_of(model: OnnxBuilder) -> tvm_hybrid.InferenceSession:
    """The compiled model, on one thread and without records."""
    return tvm_hybrid.InferenceSession(model.model(), num_threads=1, records=[])


def same_as_onnx_runtime(model: OnnxBuilder, feeds: Iterable[Feeds]) -> tvm_hybrid.InferenceSession:
    """Asserts equal bits, shapes and types for all feeds."""
    peer = literal_session(model.model())
    pairs = [(feed, peer.run(None, feed)) for feed in feeds]
    return same(model, pairs)


def same(
    model: OnnxBuilder, pairs: Iterable[tuple[Feeds, Sequence[np.ndarray]]]
) -> tvm_hybrid.InferenceSession:
    """Asserts that one program gives exactly the expected arrays for all feeds."""
    session = session_of(model)
    for feeds, expected in pairs:
        for found, wanted in zip(session.run(None, feeds), expected, strict=True):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(found, wanted)
    return session
