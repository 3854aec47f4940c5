"""Case: what all candidates of one region have in common, as worker processes are told it."""

from __future__ import annotations

import importlib
import json
from typing import Any

import msgspec
import numpy as np
import tvm
from tvm.target import Target

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.lower.kernel_context import kernel_context
from relay_passes.lower.launch_few import made_for, pipeline_for
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, all_templates, template_for

from ..verification.chain_bounds import known_case

LARGEST_ROTATION = 256 << 20


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One region, to be measured in one way.

    Attributes
    ----------
    region : Region
        What is computed.
    module : str
        The Python module that defines, and when imported registers, the template.
    isa : str
        The instruction set to build for.
    target : str
        The TVM target as JSON.
    threads : int
        Threads the kernels use.
    footprint_bytes : int
        Bytes of all constants of the model: kernels read theirs from so much memory in turn.
    seed : int
        For the arguments.
    """

    region: Region
    module: str
    isa: str
    target: str
    threads: int
    footprint_bytes: int = 0
    seed: int = 0

    @staticmethod
    def of(
        region: Region,
        template: Template[Any],
        machine: Machine,
        target: str,
        footprint_bytes: int = 0,
        seed: int = 0,
    ) -> Case:
        """The case of a region on a machine, with as many threads as that has."""
        return Case(
            region=region,
            module=type(template).__module__,
            isa=machine.isa.name,
            target=target,
            threads=machine.threads,
            # More than twice the L3 makes no difference.
            footprint_bytes=min(footprint_bytes, 2 * machine.l3_bytes, LARGEST_ROTATION),
            seed=seed,
        )

    def template(self) -> Template[Any]:
        """The region's template; its module is imported if nobody has."""
        if self.region.op not in {template.name for template in all_templates()}:
            importlib.import_module(self.module)
        return template_for(self.region.op)


class PreparedCase:
    """A case with its arguments and its exact result, for candidates one after the other.

    Parameters
    ----------
    case : Case
        What is measured.
    template : Template
        What builds it.
    """

    def __init__(self, case: Case, template: Template[Any]) -> None:
        self.region, self.template, self.threads = case.region, template, case.threads
        self.footprint_bytes = case.footprint_bytes
        self.isa, self.target = isa_named(case.isa), Target(json.loads(case.target))
        self.arrays, self.expected = known_case(case.region, template, case.seed)

    def compile(self, config: Config, name: str) -> tuple[Any, dict[int, np.ndarray]]:
        """A candidate's code, and the constants that it reads, packed, by argument."""
        function = self.template.build(self.region, config, self.isa)
        with kernel_context([function]):  # the code that a model gets
            function = made_for(function.with_attr("global_symbol", name), self.threads)
            pipeline = pipeline_for(self.threads)
            code = tvm.compile(function, self.target, tir_pipeline=pipeline)
        constants = {}
        for i, tensor in enumerate(self.region.inputs):
            if tensor.constant:
                array = self.arrays[i]
                if self.template.packing is not None:
                    array = self.template.packing.pack(self.region, config, self.isa, i, array)
                constants[i] = np.ascontiguousarray(array)
        return code, constants
