"""Predictions for single configurations, which the tuner notes in records."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.tvm_hybrid.tuning.synthetic import (
    load_recording,
    product,
    synthetic_records,
    write_recording,
)
from tvm_hybrid.tuning.recordings.simulate import Recording
from tvm_hybrid.tuning.search.model_search import ModelSearch


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path = tmp_path_factory.mktemp("recording") / "product.jsonl"
    return load_recording(write_recording(path, synthetic_records(product())))


def test_predictions_are_scores(recording: Recording) -> None:
    search = ModelSearch(recording.task(), random.Random(0))
    assert search.prediction(0) is None  # nothing learned yet
    tried = list(range(0, len(recording.space), 4))
    search.observe([(index, float(recording.scores[index])) for index in tried])
    left = sorted(set(range(len(recording.space))) - set(tried))
    expected = np.array([search.prediction(index) or 0.0 for index in left])
    assert search.predicted() == pytest.approx(expected.max())
    assert (expected > 0).all()
    # In a smooth space, a quarter of which is known, the order of the others is predicted.
    known = recording.scores[left] > 0
    places, right = (
        np.argsort(np.argsort(values[known])) for values in (expected, recording.scores[left])
    )
    assert np.corrcoef(places, right)[0, 1] > 0.7
