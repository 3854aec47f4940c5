"""Cases are written and read, cut, permuted, and examined in a process that may end."""

from __future__ import annotations

import numpy as np
import pytest

from .case import Case
from .examine import Outcome, State
from .generate import generate
from .metamorphic import permuted
from .motifs import KINDS
from .oracle import Oracle
from .shrinking import shrink, text_of
from .worker import Worker


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_survives_its_file(kind: str) -> None:
    case = generate(kind, 7)
    again = Case.from_bytes(case.to_bytes())
    assert again.model.graph == case.model.graph
    assert (again.settings, again.checks, again.origin) == (case.settings, case.checks, f"{kind}/7")
    for name, array in case.feeds.items():
        assert again.feeds[name].dtype == array.dtype
        assert again.feeds[name].tobytes() == array.tobytes()


def test_the_same_seed_gives_the_same_case() -> None:
    assert generate("layout", 3).to_bytes() == generate("layout", 3).to_bytes()


def test_a_case_shrinks_to_the_node_that_matters() -> None:
    case = generate("attention", 11)
    assert len(case.model.graph.node) > 10

    def examine(candidate: Case) -> Outcome:
        Oracle(candidate.model, candidate.feeds)  # every candidate is a valid model
        has = any(node.op_type == "Softmax" for node in candidate.model.graph.node)
        return Outcome(State.WRONG if has else State.OK)

    small = shrink(case, Outcome(State.WRONG), examine)
    assert [node.op_type for node in small.model.graph.node] == ["Softmax"]
    assert "Softmax" in text_of(small)


def test_another_order_means_the_same() -> None:
    case = generate("chain", 5)
    other = permuted(case)
    names = [each.name for each in case.model.graph.output]
    assert [node.output[0] for node in other.model.graph.node] != [
        node.output[0] for node in case.model.graph.node
    ]
    for name in names:
        np.testing.assert_array_equal(
            Oracle(case.model, case.feeds).plain[name], Oracle(other.model, other.feeds).plain[name]
        )


def test_a_hang_and_a_crash_are_outcomes() -> None:
    case = generate("special", 0)
    with Worker(limit=0.01) as worker:
        assert worker.examine(case).state == State.HANG
    with Worker() as worker:
        worker.start()
        worker.kill()
        assert worker.examine(case).state == State.CRASH
