"""Cases that the fuzzer once found stay fixed."""

from pathlib import Path

import pytest

from .case import Case
from .examine import State, examine

CORPUS = sorted(Path(__file__).parent.glob("corpus/*.onnx"))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_case_of_the_corpus(path: Path) -> None:
    outcome = examine(Case.from_bytes(path.read_bytes()))
    assert outcome.state == State.OK, outcome.message
