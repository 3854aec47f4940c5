"""A template for the tuner's tests that adds two vectors and misbehaves if its config says so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.errors import ConfigError
from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import ramp
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import Template, register_template

NAME = "toy_add"
SIZE = 64


class ToyConfig(Config, frozen=True):
    """`block` elements at a time; `mode` is "right" or names a failure."""

    block: int
    mode: str = "right"


def region(size: int = SIZE) -> Region:
    """A toy region: x + weight."""
    vector = Tensor((size,), "float32")
    return Region(op=NAME, inputs=(vector, Tensor((size,), "float32", True)), output=vector)


def _body(x: tirx.Buffer, w: tirx.Buffer, y: tirx.Buffer, size: int, block: int, mode: str) -> None:
    start = (1 << 30) if mode == "segfault" else 0
    with I.serial(size // block) as i:
        index = ramp(start + i * block, block)
        total = x[index] - w[index] if mode == "wrong" else x[index] + w[index]
        I.buffer_store(y, total, [index])
    if mode == "hang":
        with I.serial(1 << 30) as i, I.serial(1 << 30) as j:
            I.buffer_store(y, y[0] * tirx.const(0.5, "float32") + x[(i + j) % size], [0])


class Toy(Template[ToyConfig]):
    """Computes x + w."""

    name = NAME
    config_type = ToyConfig

    def default_config(self, region: Region, machine: Machine) -> ToyConfig:
        return ToyConfig(block=min(8, region.output.size))

    def space(self, region: Region, machine: Machine) -> Iterator[ToyConfig]:
        for block in (1, 2, 4, 8, 16, 32, 64):
            if region.output.size % block == 0:
                yield ToyConfig(block=block)

    def check(self, region: Region, config: ToyConfig, isa: Isa) -> None:
        if config.block < 1 or region.output.size % config.block:
            raise ConfigError(f"block {config.block} does not divide {region.output.size}")

    def build(self, region: Region, config: ToyConfig, isa: Isa) -> tirx.PrimFunc:
        self.check(region, config, isa)
        size, block = region.output.size, config.block
        if config.mode == "abort":
            os.abort()
        if config.mode == "raise":
            raise RuntimeError("this candidate cannot be built")
        with IRBuilder() as builder, I.prim_func(s_tir=True):
            I.func_name("toy")
            I.func_attr(NO_ALIAS)
            x, w, y = (I.arg(name, I.buffer((size,), "float32")) for name in "xwy")
            with I.sblock("toy"):
                _body(x, w, y, size, block, config.mode)
        return builder.get()

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        return np.add(*inputs, dtype=np.float64)


TOY = register_template(Toy())
