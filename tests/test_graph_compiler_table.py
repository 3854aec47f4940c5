"""The Graph Compiler's workloads: models that run, and a prediction for all threads."""

from __future__ import annotations

import onnx
import pytest

from tools.graph_compiler_table import MHAS, MLPS, PUBLISHED, attention, perceptron, predicted_us


def test_every_workload_has_published_gains() -> None:
    assert {name for name, _ in PUBLISHED} == {*MLPS, *MHAS}
    assert all(gain > 1 for gain in PUBLISHED.values())


@pytest.mark.parametrize("int8", [False, True])
def test_models_are_valid(int8: bool) -> None:
    for model in (perceptron(32, MLPS["MLP_2"], int8), attention(2, *MHAS["MHA_1"], int8)):
        onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("int8", [False, True])
def test_merging_is_predicted_to_gain(int8: bool) -> None:
    model = perceptron(32, MLPS["MLP_1"], int8)
    assert 0 < predicted_us(model, "coarse") < predicted_us(model, "fine")
