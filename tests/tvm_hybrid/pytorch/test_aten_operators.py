"""Every ATen operator that is imported agrees with eager mode, in several forms."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tvm_hybrid  # noqa: E402

from .aten import FAMILIES  # noqa: E402
from .aten.calls import Calls, operator, tensors  # noqa: E402


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_agree_with_eager_mode(family: str) -> None:
    model = Calls(FAMILIES[family]).eval()
    with torch.no_grad():
        program = torch.export.export(model, tuple(model.inputs))
    executable = tvm_hybrid.compile(program, num_threads=1)
    made = executable.main(*model.inputs)
    found = [torch.from_dlpack(each) for each in ([made] if len(executable.outputs) == 1 else made)]
    wrong = []
    for name, each in model.calls:
        wanted = tensors(operator(name)(*each.args, **each.kwargs))
        for number, one in enumerate(wanted):
            try:
                torch.testing.assert_close(
                    found.pop(0), one, atol=each.atol, rtol=each.rtol, equal_nan=True
                )
            except AssertionError as error:
                wrong.append(f"{name}{each.args, each.kwargs}, result {number}: {error}")
    assert not wrong, "\n".join(wrong)
    assert not found
