"""The operator race has every operator or a reason, and prints its results."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from tools.operator_race.__main__ import CASES, main
from tools.operator_race.case import SIZES

LEFT = {
    "control flow": "If Loop Scan SequenceMap",
    "no numbers": "ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit",
    "sequences": (
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt "
        "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
        "SplitToSequence"
    ),
    "random": (
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
    ),
    "no work": "BitCast Constant",
    "not in ONNX Runtime yet": "CausalConvWithState CumProd LinearAttention SwiGLU",
}


def test_every_operator_is_raced_or_left_for_a_reason() -> None:
    schemas = onnx.defs.get_all_schemas()
    every = {each.name for each in schemas if not each.domain and not each.deprecated}
    raced = {make(0).operator for make in CASES.values()}
    left = {name for names in LEFT.values() for name in names.split()}
    assert not left & raced
    assert every - raced - left == set()


@pytest.mark.parametrize("size", ["small", "middle"])
def test_cases_are_models_that_fit_their_feeds(size: str) -> None:
    for make in CASES.values():
        case = make(SIZES.index(size))
        for is_dynamic in (False, True):
            model = onnx.load_from_string(case.model(is_dynamic))
            assert [each.name for each in model.graph.input] == list(case.feeds)


def test_results_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "race.json"
    run = CliRunner().invoke(
        main, ["--cases", "ReduceSum,EyeLike", "--sizes", "small", "--json", str(path)]
    )
    assert run.exit_code == 0, run.output
    found = json.loads(path.read_text())
    assert {name.split(",")[0].split(";")[0] for name in found} == {
        "EyeLike", "ReduceSum", "ReduceSumSquare"
    }  # fmt: skip
    for each in found.values():
        assert each["difference, static"] < 1e-5 and each["difference, dynamic"] < 1e-5
        assert min(each[form] for form in ("onnxruntime", "static", "dynamic")) > 0
    shown = CliRunner().invoke(main, ["--from", str(path), "--below", "1000"])
    assert "geometric mean of 10 ratios" in shown.output, shown.output
    assert "EyeLike; small" in shown.output
