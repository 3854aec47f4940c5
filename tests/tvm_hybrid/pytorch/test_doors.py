"""One model by torch.export, by ONNX and as TVM's nn.Module: the same kernels, results as near."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tools.doors.compare import differences, error, kernels, ran, reference
from tools.doors.known import reason_of
from tools.doors.through import DOORS
from tools.doors.torch_models import NAMES, torch_model

QUICK = ("mbconv", "gpt", "conv1d", "einsum")
# A rounding of every tensor on the way, of numbers up to twice as large as the largest result.
TOLERANCES = {"float32": 2e-6, "float16": 5e-3, "bfloat16": 4e-2}


def cases() -> list[Any]:
    """Every model in every type; most are slow."""
    found = []
    for dtype in TOLERANCES:
        for name in NAMES:
            quick = dtype == "float32" and name in QUICK
            marks = () if quick else pytest.mark.slow
            found.append(pytest.param(name, dtype, marks=marks))
    return found


@pytest.mark.parametrize(("name", "dtype"), cases())
def test_the_doors_agree(name: str, dtype: str) -> None:
    model = torch_model(name, dtype, small=True)
    programs = {door: through(name, model, 1) for door, through in DOORS.items()}
    wanted = reference(model)
    base = programs["ONNX"]
    assert base is not None
    allowed = max(TOLERANCES[dtype], 1.5 * error(ran(base, model), wanted))
    for door, program in programs.items():
        if program is None:
            continue
        assert error(ran(program, model), wanted) <= allowed
        lines = differences(kernels(program.explain()), kernels(base.explain()))
        if reason_of(name, dtype, door) is None:
            assert lines == [], door
