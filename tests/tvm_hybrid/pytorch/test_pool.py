"""Programs of torch.compile run on the process's pool, however the thread count is set.

A process without a pool compiles a module, which several threads then call.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_hybrid  # noqa: E402
from tests.tvm_hybrid.runtime.thread_pool.counting import (  # noqa: E402
    ENVIRONMENTS,
    Found,
    check_found,
    counted,
    run_with,
)
from tests.tvm_hybrid.runtime.thread_pool.wide_model import EXPECTED, WEIGHT, X  # noqa: E402

SAID: dict[str, dict[str, Any]] = {
    "num_threads": {"num_threads": 2},
    "nothing": {},
    "all": {"threads": "all"},
}
WAYS = ("compiled", "exported")
CASES = list(itertools.product(SAID, WAYS))


def _layer() -> Any:
    layer = torch.nn.Linear(*WEIGHT.shape, bias=False).eval()
    layer.weight = torch.nn.Parameter(torch.from_numpy(WEIGHT.T.copy()), requires_grad=False)
    return layer


def _program(said: str, way: str) -> tuple[int, Callable[[], object]]:
    """Number of threads of a run, and a function that runs the program."""
    layer, x, options = _layer(), torch.from_numpy(X), SAID[said]

    def equal(y: Any) -> None:
        np.testing.assert_array_equal(y, EXPECTED)

    if way == "exported":
        session = tvm_hybrid.InferenceSession(torch.export.export(layer, (x,)), **options)
        [name] = [each.name for each in session.get_inputs()]
        return session.executable.num_threads, lambda: equal(session.run(None, {name: X})[0])
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="tvm_hybrid", options={"strict": True, **options})
    with torch.no_grad():
        compiled(x)  # torch compiles in the first call
    executable = tvm_hybrid.torch_programs()[-1].executable
    assert executable is not None

    def call() -> None:
        with torch.no_grad():
            equal(compiled(x).numpy())

    return executable.num_threads, call


def report() -> None:
    """Prints the counts after several threads called each program."""
    torch.set_num_threads(2)
    torch.ones(1 << 20).exp()  # starts torch's own threads
    found = []
    with counted() as counts:
        for said, way in CASES:
            counts.forget()
            found.append(counts.of_callers(*_program(said, way)))
    print(json.dumps(found))


@pytest.fixture(scope="module")
def found_in() -> Callable[[str], list[Found]]:
    """What `report` printed, by environment; one process for each."""

    @functools.cache
    def found(environment: str) -> list[Found]:
        lists = run_with(environment, f"from {__name__} import report; report()")
        return [Found(*each) for each in lists]

    return found


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_callers_share_one_pool(
    environment: str, case: tuple[str, str], found_in: Callable[[str], list[Found]]
) -> None:
    check_found(found_in(environment)[CASES.index(case)])
