"""Operators and reasons of decisions, split into their parts."""

from __future__ import annotations

import pytest

from tvm_hybrid.report.page.picture import parts_of, reasons_of, title_of


@pytest.mark.parametrize(
    ("op", "parts"),
    [
        ("matmul + add + gelu", [["matmul", "add", "gelu"]]),
        ("mlp_chain (matmul + add, layer_norm)", [["matmul", "add"], ["layer_norm"]]),
        ("side_by_side (a (b, c), d + e)", [["a (b, c)"], ["d", "e"]]),
        ("take", [["take"]]),
    ],
)
def test_parts(op: str, parts: list[list[str]]) -> None:
    assert parts_of(op) == parts


def test_the_title_is_the_template() -> None:
    assert title_of("mlp_chain (matmul + add, layer_norm)") == "mlp_chain"
    assert title_of("conv2d + relu") == "conv2d"


def test_reasons_are_sentences() -> None:
    assert reasons_of("template a; b (c; d); e") == ["template a", "b (c; d)", "e"]
    assert reasons_of("") == []
