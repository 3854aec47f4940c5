"""Defaults of a template that defines only what it must."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tvm import tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from tests.tir_schedules.run_region import machine_for
from tir_schedules.core import template
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.template import Template, register_template, template_for

X = Tensor((3, 4), "float32")
REGION = Region(op="least", inputs=(X,), output=X)
MACHINE = machine_for("avx2")


class LeastConfig(Config, frozen=True):
    """A configuration with one number."""

    number: int


class Least(Template[LeastConfig]):
    """A template with only the required members."""

    name = "least"
    config_type = LeastConfig

    def default_config(self, region: Region, machine: Machine) -> LeastConfig:
        return LeastConfig(number=machine.threads)

    def check(self, region: Region, config: LeastConfig, isa: Isa) -> None:
        if config.number < 1:
            raise ConfigError("number")

    def build(self, region: Region, config: LeastConfig, isa: Isa) -> tirx.PrimFunc:
        raise NotImplementedError

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        return inputs[0]


@pytest.fixture
def least(monkeypatch: pytest.MonkeyPatch) -> Iterator[Least]:
    monkeypatch.setattr(template, "_templates", dict(template._templates))
    yield register_template(Least())


def test_defaults(least: Least) -> None:
    config, isa = least.default_config(REGION, MACHINE), MACHINE.isa
    assert list(least.space(REGION, MACHINE)) == [config]
    assert least.kernel_name(REGION, config, isa) == "avx2_least"
    assert least.flops(REGION) == 12
    assert least.rejection(REGION, isa) is None and least.packing is None
    assert (least.at_run_time(REGION, config), least.by_values(REGION, config)) == ("", "")
    assert not [*least.nests(REGION, config), *least.products(REGION, config, MACHINE)]
    assert least.estimate(REGION, config, MACHINE) is None
    assert least.why_vectors(REGION, config, MACHINE) is None


def test_operations_of_parts_are_added_up(least: Least) -> None:
    assert least.flops(REGION.replace(parts=(REGION, REGION, REGION))) == 36


def test_dynamic_sizes_have_to_be_allowed(least: Least) -> None:
    x = Tensor((SymbolicSize.of("n"), 4), "float32")
    reason = least.rejection(REGION.replace(inputs=(x,), output=x), MACHINE.isa)
    assert reason == "least needs static sizes"


def test_a_microkernel_names_the_kernel() -> None:
    matmul = template_for("matmul")
    w = Tensor((4, 5), "float32", True)
    region = Region(op="matmul", inputs=(X, w), output=Tensor((3, 5), "float32"))
    config = matmul.default_config(region, MACHINE)
    assert matmul.kernel_name(region, config, MACHINE.isa) == config.kernel


def test_what_has_no_default_is_asked_for(least: Least) -> None:
    with pytest.raises(TypeError, match="abstract"):
        type("Nothing", (Template,), {"name": "nothing"})()
    with pytest.raises(ValueError, match="'least' is registered twice"):
        register_template(Least())
