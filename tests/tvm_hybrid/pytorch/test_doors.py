"""One model by torch.export, by ONNX and as TVM's nn.Module: equal kernels, equal tolerances."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tvm_hybrid.errors import ShapeError
from tvm_hybrid.executable.executable import Executable

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tools.doors.compare import differences, error, kernels, ran, reference
from tools.doors.through import DOORS
from tools.doors.torch_models import NAMES, TorchModel, torch_model

pytestmark = pytest.mark.turns

QUICK = ("mbconv", "gpt", "conv1d", "einsum")
# Every intermediate tensor is rounded, with numbers up to twice the largest result.
TOLERANCES = {"float32": 2e-6, "float16": 5e-3, "bfloat16": 4e-2}


def cases() -> list[Any]:
    """Every model in every type; most cases are slow."""
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
    wanted = reference(model)
    base = onnx_program(name, model, dtype)
    allowed = max(TOLERANCES[dtype], 1.5 * error(ran(base, model), wanted))
    for door in ("torch", "nn"):
        program = DOORS[door](name, model, 1)
        if program is None:
            continue
        assert error(ran(program, model), wanted) <= allowed
        assert differences(kernels(program.explain()), kernels(base.explain())) == [], door


def onnx_program(name: str, model: TorchModel, dtype: str) -> Executable:
    """The program by ONNX; some models cannot be written in ONNX in bfloat16."""
    try:
        program = DOORS["ONNX"](name, model, 1)
    except ShapeError as refusal:
        if dtype != "bfloat16":
            raise
        pytest.skip(f"no valid ONNX: {refusal}")
    assert program is not None
    return program


def test_a_difference_is_told() -> None:
    found, wanted = Counter({"a": 2, "b": 1}), Counter({"a": 1, "c": 1})
    assert differences(found, wanted) == ["+1 a", "+1 b", "-1 c"]
