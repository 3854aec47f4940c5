"""The front end's and the passes' work grows at most linearly with a model's layers.

The test counts for three models with equal steps between their numbers of layers. If the work of
the second and third model beyond the first is proportional to the steps, nodes are visited a
bounded number of times.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tvm import IRModule, ir

from microkernels.machines.description import shipped_path
from relay_passes.ir.graph import forget_block
from relay_passes.pipeline import phases
from relay_passes.pipeline_options import PipelineOptions
from tools.compile_times.encoders import Sizes, encoder
from tools.compile_times.graph import Form, Model
from tools.compile_times.hooks import Entries, Function
from tools.compile_times.images import Net
from tvm_hybrid.api import import_model
from tvm_hybrid.targets.resolve import resolve_target

CPU = "icelake-server"
FEW, MANY = (2, 4, 6), (8, 32, 56)
SLACK = 1.1
"""Allowed ratio of a pass's function entries for the second step to those for the first."""
SLACK_OF_FUNCTION = 1.3
"""Allowed ratio for a single function: some run for every second layer, or at either end."""
OFTEN = 60
"""A single function is checked from this number of entries per step."""

Work = dict[str, Counter[Function]]
"""Function entries by pass."""


def transformer(form: Form, layers: int) -> Model:
    return encoder(form, Sizes(layers, width=32, heads=2, words=64, tokens=16))


def convolutions(form: Form, layers: int) -> Model:
    """Residual blocks of three convolutions, with batch normalisation."""
    net = Net(form)
    x = net.conv(net.image(3, 16, 16), 16, 3, "Relu", norm=True)
    for _ in range(layers):
        y = net.conv(net.conv(x, 16, 1, "Relu", norm=True), 16, 3, "Relu", norm=True)
        x = net.op("Relu", net.add(net.conv(y, 16, 1, norm=True), x))
    net.output(x.name)
    return net.model()


@pytest.mark.parametrize(
    ("build", "dynamic", "layers"),
    [
        (transformer, True, FEW),
        (convolutions, False, FEW),
        (convolutions, True, FEW),
        *(
            pytest.param(build, dynamic, MANY, marks=pytest.mark.slow)
            for build in (transformer, convolutions)
            for dynamic in (False, True)
        ),
    ],
)
def test_equal_layers_take_equal_work(
    build: Callable[[Form, int], Model], dynamic: bool, layers: Sequence[int]
) -> None:
    form = Form(dynamic=dynamic)
    _work_for(build(form, 1), dynamic)  # does the work that a process does once
    first, second, third = (_work_for(build(form, count), dynamic) for count in layers)
    costs = [_total(work, "evaluations") for work in (first, second, third)]
    assert costs[0] > 0 and costs == costs[:1] * 3
    steps = [_beyond(second, first), _beyond(third, second)]
    one, other = steps
    assert sum(one[name].total() for name in one) > 1000
    faster = {
        name: (one[name].total(), other[name].total())
        for name in other
        if other[name].total() > SLACK * max(OFTEN, one[name].total())
    }
    assert not faster
    places = {
        (name, each.place, each.name): (one[name][each], count)
        for name in other
        for each, count in other[name].items()
        if count > SLACK_OF_FUNCTION * max(OFTEN, one[name][each])
    }
    assert not places


def _work_for(model: Model, dynamic: bool) -> Work:
    """Counts function entries of compilation up to LLVM."""
    work: Work = {}
    target = resolve_target(CPU, shipped_path(CPU))
    imported = _counted(
        work, "front end", functools.partial(import_model, model.proto, None, None, dynamic)
    )
    mod: IRModule = imported.mod
    with ir.transform.PassContext(opt_level=3), target:
        for passes in phases(PipelineOptions(target=target, threads=1), []).values():
            for each in passes:
                mod = _counted(work, each.info.name, functools.partial(each, mod))
    forget_block()
    return work


def _counted(work: Work, name: str, run: Callable[[], Any]) -> Any:
    entries = Entries()
    with entries:
        result = run()
    work.setdefault(name, Counter()).update(entries.by_function())
    return result


def _total(work: Work, kind: str) -> int:
    return sum(n for found in work.values() for each, n in found.items() if each.kind == kind)


def _beyond(more: Work, less: Work) -> Work:
    """The entries of one model beyond another's."""
    return {name: more[name] - less.get(name, Counter()) for name in more}
