"""Every ATen operator that is imported agrees with eager mode, in several forms."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tvm import tirx  # noqa: E402

import tvm_hybrid  # noqa: E402
from tests.examples import some  # noqa: E402
from tvm_hybrid.errors import ModelError, UnsupportedOperatorError  # noqa: E402
from tvm_hybrid.frontend.torch.converters import known_converters, new_importer  # noqa: E402
from tvm_hybrid.frontend.torch.importer import decomposed, import_core  # noqa: E402
from tvm_hybrid.frontend.torch.quantized import QUANTIZED  # noqa: E402
from tvm_hybrid.frontend.torch.recurrent import RECURRENT  # noqa: E402
from tvm_hybrid.frontend.torch.sizes import Sizes  # noqa: E402

from .aten import FAMILIES  # noqa: E402
from .aten.calls import Calls, Family, operator, tensors  # noqa: E402

pytestmark = pytest.mark.turns

REFUSED = [
    (name, each)
    for family in FAMILIES.values()
    for name, forms in family.items()
    for each in forms
    if each.refused
]
# Tested in test_quantised.py, test_chosen_ranges.py, test_buffers.py and test_dynamic_operators.py.
TESTED_APART = {"cond", *QUANTIZED, *RECURRENT, "lift_fresh_copy.default", "true_divide.Tensor"}


def exported(family: Family) -> tuple[Calls, Any]:
    """A family's calls as a module, and as an exported program with the operators to import."""
    model = Calls(family).eval()
    with torch.no_grad():
        return model, decomposed(torch.export.export(model, tuple(model.inputs)))


@functools.cache
def exported_family(name: str) -> tuple[Calls, Any]:
    """The forms of a family that are accepted."""
    kept = {
        overload: [each for each in forms if not each.refused]
        for overload, forms in FAMILIES[name].items()
    }
    return exported(kept)


@pytest.mark.parametrize("family", some([*FAMILIES]))
def test_operators_agree_with_eager_mode(family: str) -> None:
    model, program = exported_family(family)
    executable = tvm_hybrid.compile(import_core(program), num_threads=1)
    made = executable.main(*model.inputs)
    found = [torch.from_dlpack(each) for each in ([made] if len(executable.outputs) == 1 else made)]
    wrong = []
    for name, each in model.calls:
        results = tensors(operator(name)(*each.args, **each.kwargs))[: each.results]
        for number, wanted in enumerate(results):
            try:
                torch.testing.assert_close(
                    found.pop(0), wanted, atol=each.atol, rtol=each.rtol, equal_nan=True
                )
            except AssertionError as error:
                wrong.append(f"{name}{each.args, each.kwargs}, result {number}: {error}")
    assert not wrong, "\n".join(wrong)
    assert not found


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=lambda number: REFUSED[number][0])
def test_forms_that_nobody_imports_are_refused_by_name(number: int) -> None:
    name, each = REFUSED[number]
    _, program = exported({name: [each]})
    with pytest.raises(UnsupportedOperatorError, match=name):
        import_core(program)


def test_every_operator_that_is_imported_has_a_case() -> None:
    called = {
        node.target.__name__
        for family in FAMILIES
        for node in exported_family(family)[1].graph.nodes
        if node.op == "call_function"
    }
    without = known_converters() - called - TESTED_APART
    assert not without, "no case calls them, though they are imported"


def test_no_other_converters_of_tvm_are_there() -> None:
    assert set(new_importer(Sizes()).convert_map) == known_converters()


def test_sizes_that_are_known_to_differ() -> None:
    dynamic = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")},)
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3, 4),), dynamic_shapes=dynamic)
    rows, columns = next(iter(program.graph.nodes)).meta["val"].shape
    sizes = Sizes()
    one, other = sizes.of(rows), sizes.of(columns)
    for size, found in (
        (rows, other),
        (rows, one * 2),
        (rows, one + 1),
        (3, tirx.IntImm("int64", 4)),
    ):
        assert sizes.differ(size, found)
    unknown = tirx.Var("unknown", "int64")
    for size, found in ((rows, one), (rows * 2, one + one), (rows, unknown), (rows, one // other)):
        assert not sizes.differ(size, found)


class Branches(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Takes a branch that depends on a value."""

    def __init__(self, one: Any, other: Any) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Any) -> Any:
        """Result of one of the two branches."""
        return torch.cond(x.sum() > 0, self.one, self.other, (x,))


def test_branches() -> None:
    model = Branches(lambda x: torch.relu(x) + 1, lambda x: x * x)
    inputs = [torch.full((3,), value) for value in (2.0, -2.0)]
    executable = tvm_hybrid.compile(torch.export.export(model, (inputs[0],)), num_threads=1)
    for x in inputs:
        torch.testing.assert_close(torch.from_dlpack(executable.run(x)[0]), model(x))


def test_operators_in_branches_are_refused_by_name() -> None:
    model = Branches(torch.special.bessel_j0, torch.relu)
    with pytest.raises(ModelError, match=r"special_bessel_j0\.default"):
        tvm_hybrid.compile(torch.export.export(model, (torch.ones(3),)))
