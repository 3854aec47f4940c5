"""Select: gives every region its configuration, from a record or by the template's formula.

Before

    R.func_attr({"tvm_hybrid.region": "{...}"})

After

    R.func_attr({"tvm_hybrid.region": "{...}", "tvm_hybrid.config": "{...}",
                 "tvm_hybrid.source": "default"})

The source is "default", or what the lookup says: "record r.jsonl:7", "borrowed from ...".
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.errors import ConfigError
from microkernels.machines.machine import Machine
from relay_passes.ir.region_functions import is_region_function, region_of
from relay_passes.ir.rewrite import map_functions
from tir_schedules.core.config import Config
from tir_schedules.core.form_memo import FormMemo
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

logger = logging.getLogger("tvm_hybrid")

CONFIG = "tvm_hybrid.config"
SOURCE = "tvm_hybrid.source"
Lookup = Callable[[Region, Machine], "tuple[Config, str] | None"]


def select_configs(machine: Machine, lookup: Lookup | None) -> ir.transform.Pass:
    """The pass: `lookup` first, the template's default where it knows nothing or nothing legal."""

    @module_pass(opt_level=0, name="tvm_hybrid.select_configs")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        # A model has many equal layers.
        default = FormMemo(lambda region: template_for(region.op).default_config(region, machine))

        def configured(function: relax.Function) -> relax.Function:
            if CONFIG in function.attrs:
                return function
            config, source = choose(region_of(function), machine, lookup, default)
            text = msgspec.json.encode(config).decode()
            return function.with_attr(CONFIG, text).with_attr(SOURCE, source)

        return map_functions(mod, is_region_function, configured)

    return run


def choose(
    region: Region,
    machine: Machine,
    lookup: Lookup | None,
    default: Callable[[Region], Config] | None = None,
) -> tuple[Config, str]:
    """A region's configuration and where it comes from.

    Where no record fits, `default` says it; without that, the template.
    """
    template = template_for(region.op)
    found = lookup(region, machine) if lookup else None
    if found is not None:
        try:
            template.check(region, found[0], machine.isa)
        except ConfigError as error:
            logger.warning("%s is not used: %s", found[1], error)
        else:
            return found
    found_default = default(region) if default else template.default_config(region, machine)
    return found_default, "default"


def config_of(function: relax.Function, region: Region) -> Config:
    """The configuration that `select_configs` gave a region function."""
    text = str(function.attrs[CONFIG])
    return msgspec.json.decode(text, type=template_for(region.op).config_type)
