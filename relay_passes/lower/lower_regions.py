"""Lower: every region becomes a call to a TIR kernel that its template builds.

Before

    gv = fused_matmul(x, const_packed, b)

After

    gv = R.call_tir(tvm_hybrid_matmul, (x, const_packed, b), out_ty=R.Tensor(...))

Equal regions with equal configurations share one kernel. Regions that differ only in numbers share
a kernel, too (kernel_sharing.py): the numbers become a further argument, as in `share_kernels`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec
from tvm import IRModule, relax, tirx

from microkernels.base.errors import CompileError, ConfigError, TvmHybridError
from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE, function_adder
from microkernels.machines.machine import Machine
from relay_passes.ir import functions, rewrite
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.functions import called_region, is_region_function, named_pass, region_of
from relay_passes.ir.graph import bindings_of, is_call
from relay_passes.ir.traits import RESHAPES
from tir_schedules.core.config import Config
from tir_schedules.core.kernel_numbers import FormMemo
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.cost.amx_cost import why_fewer_threads, why_vectors
from tir_schedules.recurrent.recurrent import RECURRENT_ATTRS

from .kernel_sharing import Families, Shared, shared


@named_pass
def lower_regions(mod: IRModule, machine: Machine, decisions: DecisionLog) -> IRModule:
    """The pass; notes the kernel and configuration of every region."""
    others = {g: f for g, f in mod.functions_items() if not is_region_function(f)}
    builder = relax.BlockBuilder(IRModule(others, mod.attrs, mod.global_infos))
    lowerer = _Lowerer(mod, builder, machine, decisions)
    lowered = rewrite.rewrite_region_calls(mod, builder, lowerer.call)
    # Drops the functions of recurrent layers that became regions: nothing calls them any more.
    marked = (RECURRENT_ATTRS in (f.attrs or {}) for f in mod.functions.values())
    return relax.transform.DeadCodeElimination()(lowered) if any(marked) else lowered


def build_kernel(region: Region, config: Config, machine: Machine) -> tirx.PrimFunc:
    """A region's kernel, with the attributes that later passes read.

    Raises
    ------
    CompileError
        If the template fails; the message names the region.
    """
    template = template_for(region.op)
    function = emit_kernel(region, config, machine)
    name = template.kernel_name(region, config, machine.isa)
    private = function.without_attr("global_symbol")  # the module names it
    marked = private.with_attr(functions.KERNEL, name)
    products = template.products(region, config, machine)
    # Rows of tiles that cross cache lines take 1.5 times as long: copying them costs less.
    if not any(product.plan.kernel.by_tiles for product in products):
        marked = marked.with_attr(functions.UNALIGNED, True)
    return marked.with_attr(OP_PATTERN, OPAQUE).with_attr(functions.REGION, region.to_json())


def emit_kernel(region: Region, config: Config, machine: Machine) -> tirx.PrimFunc:
    """A region's kernel as the template builds it; errors as in `build_kernel`."""
    try:
        return template_for(region.op).build(region, config, machine.isa)
    except TvmHybridError:
        raise
    except Exception as error:
        raise CompileError(f"building {region.key} with {config} failed: {error}") from error


def operators_of(region: Region) -> str:
    """A region's operators for `explain`: "matmul + add + relu"; if merged also the parts."""
    if region.parts:
        return f"{region.op} ({', '.join(map(operators_of, region.parts))})"
    steps = [step.op for step in region.epilogue if step.op != "constant"]
    return " + ".join([region.op, *steps])


def decision_of(
    binding: relax.Binding, callee: relax.Function, kernel: relax.GlobalVar, machine: Machine
) -> Decision:
    """The decision for a region, for `explain`."""
    region, config = region_of(callee), config_of(callee)
    template = template_for(region.op)
    reason = str(callee.attrs.get(functions.REASON, f"template {region.op}"))
    fewer = why_fewer_threads(config, machine)
    return Decision(
        node=str(binding.var.name),
        op=operators_of(region),
        taken=True,
        function=str(kernel.name_hint),
        kernel=template.kernel_name(region, config, machine.isa),
        config=msgspec.to_builtins(config),
        source=str(callee.attrs[SOURCE]),
        reason="; ".join(filter(None, [reason, fewer, template.by_values(region, config)])),
        on_vectors=why_vectors(region, config, machine),
        at_run_time=template.at_run_time(region, config) if region.is_dynamic else "",
        flops=int(template.flops(region)),
        workload=region.key,
    )


class KernelPass(ABC):
    """Base of passes that add kernels to a module with kernels or regions.

    Parameters
    ----------
    mod : IRModule
        The module; it is not changed.
    machine : Machine
        The machine that kernels are built for.
    decisions : list of Decision
        The decisions about the module's kernels.
    """

    def __init__(self, mod: IRModule, machine: Machine, decisions: DecisionLog) -> None:
        self.mod, self.machine, self.decisions = mod, machine, decisions
        self.builder = relax.BlockBuilder(mod)
        self.add = function_adder(self.builder, mod)
        self.kernels: dict[object, relax.GlobalVar] = {}

    def rewritten(self) -> IRModule:
        """The module with its blocks rewritten by `block`."""
        return rewrite.rewrite_blocks(self.builder, self.block)

    @abstractmethod
    def block(self, block: relax.DataflowBlock) -> list[relax.Binding] | None:
        """The bindings of a block with other kernels; None if nothing changes."""

    @staticmethod
    def results(call: relax.Expr, name: str, variables: Sequence[relax.Var]) -> list[relax.Binding]:
        """Binds the results of a call, one by one, to their old variables."""
        block = rewrite.Bindings()
        results = block.emit(call, name)
        for number, variable in enumerate(variables):
            block.bind(variable, relax.TupleGetItem(results, number))
        return block.bindings

    def decided(self, var: relax.Var, kernel: relax.GlobalVar) -> int | None:
        """Index of the decision about a value that a kernel computes; None if there is none."""
        names = str(var.name), str(kernel.name_hint)
        found = (n for n, each in enumerate(self.decisions) if (each.node, each.function) == names)
        return next(found, None)

    def note(self, var: relax.Var, kernel: relax.GlobalVar, more: str, **changed: str) -> None:
        """Adds to the reason of a decision, and changes other fields."""
        index = self.decided(var, kernel)
        if index is not None:
            before = self.decisions[index]
            reason = f"{before.reason}; {more}"
            self.decisions[index] = msgspec.structs.replace(before, reason=reason, **changed)


class _Lowerer:
    """Builds the kernels of a module's regions, each of them once."""

    def __init__(
        self, mod: IRModule, builder: relax.BlockBuilder, machine: Machine, decisions: DecisionLog
    ) -> None:
        self.builder, self.machine, self.decisions = builder, machine, decisions
        # Every called region, in order of the first calls.
        self.regions: dict[relax.GlobalVar, tuple[Region, Config]] = {}
        for function in filter(rewrite.is_ordinary, mod.functions.values()):
            for binding in bindings_of(function):
                callee = called_region(mod, binding.value)
                if callee is not None and binding.value.op not in self.regions:
                    self.regions[binding.value.op] = region_of(callee), config_of(callee)
        families = Families(
            machine,
            lambda region, config: build_kernel(region, config, machine),
            lambda region, config: emit_kernel(region, config, machine),
            {self.regions[gvar][0].key for gvar in joined_regions(mod) if gvar in self.regions},
        )
        add = function_adder(builder, mod)
        self.kernels: dict[tuple[str, Config], Shared] = {}
        for family in families(list(self.regions.values())):
            name, numbers = f"tvm_hybrid_{family.op}", list(family.members.values())
            made = shared(add, family.kernel, name, numbers, family.arguments)
            if made is None:
                made = [Shared(add(family.kernel, name))] * len(numbers)
            self.kernels |= zip(family.members, made, strict=True)

    def call(self, binding: relax.VarBinding, callee: relax.Function) -> relax.Expr:
        """The call_tir that replaces a region's call."""
        region, config = self.regions[binding.value.op]
        kernel = self.kernels[region.key, config]
        self.decisions.append(decision_of(binding, callee, kernel.gvar, self.machine))
        arguments = kernel.arguments(binding.value.args)
        return relax.call_tir(kernel.gvar, arguments, out_ty=binding.var.ty)


logger = logging.getLogger("tvm_hybrid")

CONFIG = "tvm_hybrid.config"
SOURCE = "tvm_hybrid.source"
Lookup = Callable[[Region, Machine], "tuple[Config, str] | None"]
Default = Callable[[Region], Config]


@named_pass
def select_configs(mod: IRModule, machine: Machine, lookup: Lookup | None) -> IRModule:
    """Select: gives every region its configuration, from a record or by the template's formula.

    Before

        R.func_attr({"tvm_hybrid.region": "{...}"})

    After

        R.func_attr({"tvm_hybrid.region": "{...}", "tvm_hybrid.config": "{...}",
                     "tvm_hybrid.source": "default"})

    The source is "default", or what the lookup returns: "record r.jsonl:7", "borrowed from ...".

    `lookup` is asked first; if it has no configuration or an illegal one, the default is used.
    """
    # A model has many equal layers.
    default = FormMemo(lambda region: template_for(region.op).default_config(region, machine))

    def configured(function: relax.Function) -> relax.Function:
        if CONFIG in function.attrs:
            return function
        config, source = choose(region_of(function), machine, lookup, default)
        text = msgspec.json.encode(config).decode()
        return function.with_attr(CONFIG, text).with_attr(SOURCE, source)

    return rewrite.map_functions(mod, is_region_function, configured)


def choose(
    region: Region, machine: Machine, lookup: Lookup | None, default: Default | None = None
) -> tuple[Config, str]:
    """A region's configuration and where it comes from.

    If no record fits, `default` gives it; without `default`, the template does.
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


def config_of(function: relax.Function) -> Config:
    """The configuration that `select_configs` gave a region function."""
    template = template_for(region_of(function).op)
    return msgspec.json.decode(str(function.attrs[CONFIG]), type=template.config_type)


def joined_regions(mod: IRModule) -> set[relax.GlobalVar]:
    """Finds regions whose results are concatenated: `concat_in_place` changes their kernels
    separately.

    lv = fused_conv2d(x, w)
    lv1 = R.reshape(lv, (64, 56, 56))
    lv2 = R.concat((lv1, y))             # fused_conv2d is such a region

    The functions whose results a concatenation reads, directly or through reshapes.
    """
    found: set[relax.GlobalVar] = set()
    for function in filter(rewrite.is_ordinary, mod.functions.values()):
        values: dict[relax.Expr, relax.Expr] = {x.var: x.value for x in bindings_of(function)}
        joins = (call.args[0] for call in values.values() if is_call(call, "relax.concat"))
        for tensor in (x for join in joins if isinstance(join, relax.Tuple) for x in join.fields):
            source = values.get(tensor)
            while is_call(source, *RESHAPES):
                source = values.get(source.args[0])
            if isinstance(source, relax.Call) and isinstance(source.op, relax.GlobalVar):
                found.add(source.op)
    return found
