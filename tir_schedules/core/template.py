"""Template: what builds and describes one kind of region, and the registry of all templates.

A template's file ends with a subclass of `Template` and `NAME = register_template(Subclass())`.
Lowering, tuning and the contract tests take every template that is registered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
from tvm import relax, tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine

from .arrays import A
from .config import Config
from .loop_nest import LoopNest
from .product_plan import Product
from .region import Region

C = TypeVar("C", bound=Config)
T = TypeVar("T", bound="Template[Any]")


class PackedInput(ABC):
    """A constant input of a region in the form that a configuration's kernel reads."""

    shape: tuple[int, ...]
    """Shape of the packed array."""

    @abstractmethod
    def pack(self, array: A) -> A:
        """Packs an array or, if the weight is a parameter, makes an expression that packs it."""

    @abstractmethod
    def unpack(self, expr: relax.Expr) -> relax.Expr:
        """The original input as a Relax expression of its packed form; floats may be rounded.

        It is the inverse of `pack`; it states a meaning and is not meant to be computed.
        """


class Template(ABC, Generic[C]):
    """How regions of one kind are built; a subclass overrides what differs.

    Attributes
    ----------
    name : str
        Equal to the `op` of the regions it builds.
    config_type : type
        Its subclass of Config.
    packing : callable or None
        (region, config, isa, number of a constant input) -> its packing, or None if `build` reads
        it unpacked; None if `build` reads all inputs unpacked.
    refuses_loans : bool
        Whether a configuration that was tuned for another region is refused if `estimate` finds it
        worse for this region than for that one.
    any_sizes : bool
        Whether `build` takes all dynamic sizes.
    version : int
        Raised when a change makes old measurements meaningless.
    """

    name: str
    config_type: type[C]
    packing: Callable[[Region, C, Isa, int], PackedInput | None] | None = None
    refuses_loans: bool = False
    any_sizes: bool = False
    version: int = 1

    @abstractmethod
    def default_config(self, region: Region, machine: Machine) -> C:
        """The configuration by closed formula, good without tuning."""

    @abstractmethod
    def check(self, region: Region, config: C, isa: Isa) -> object:
        """Refuses a configuration that is not legal, at negligible cost.

        Raises
        ------
        ConfigError
            If `build` cannot build the region with it.
        """

    @abstractmethod
    def build(self, region: Region, config: C, isa: Isa) -> tirx.PrimFunc:
        """The kernel; its parameters are inputs, operands, output.

        Raises
        ------
        ConfigError
            For a configuration that is not legal for the region.
        """

    @abstractmethod
    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The anchor's result by NumPy, for tests and for checking candidates while tuning.

        In float64 or, if every kernel gives equal values, in float32 or integers.
        """

    def space(self, region: Region, machine: Machine) -> Iterator[C]:
        """Legal configurations, the default among them."""
        yield self.default_config(region, machine)

    def kernel_name(self, region: Region, config: C, isa: Isa) -> str:
        """The microkernel that does the work or, without one, the ISA and the region's kind."""
        return str(getattr(config, "kernel", f"{isa.vector_level}_{region.op}"))

    def flops(self, region: Region) -> int:
        """Operations of the anchor: those of all parts; without parts, one for each result."""
        of_parts = (template_for(part.op).flops(part) for part in region.parts)
        return sum(of_parts) if region.parts else region.output.size

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        return None

    def reject_dynamic(self, region: Region, isa: Isa) -> str | None:
        """Why it cannot build a region with dynamic sizes, or None; call `reject` before."""
        why = f"{self.name} needs static sizes"
        return None if self.any_sizes else why

    def at_run_time(self, region: Region, config: C) -> str:
        """What the kernel of a region with dynamic sizes decides at run time, in words."""
        return ""

    def by_values(self, region: Region, config: C) -> str:
        """What the kernel decides by the values of its inputs, in words; "" if nothing."""
        return ""

    def nests(self, region: Region, config: C) -> Iterator[LoopNest]:
        """The loop nests, in the order in which they run.

        Without them, a cost model knows only the configuration itself.
        """
        return iter(())

    def estimate(self, region: Region, config: C, machine: Machine) -> float | None:
        """Cycles by the template's own formula, or None if it has no formula.

        Costs that all configurations have in common may be missing.
        """
        return None

    def products(self, region: Region, config: C, machine: Machine) -> Iterator[Product]:
        """The matrix products: for predictions, and for why one is not on tiles (AMX)."""
        return iter(())

    def why_vectors(self, region: Region, config: C, machine: Machine) -> str | None:
        """Why products stay on vectors although the machine has tiles; "" if none does.

        Returns None if the reasons follow from `products`.
        """
        return None

    def packed_input(self, region: Region, config: C, isa: Isa, index: int) -> PackedInput | None:
        """How an input is packed; None if the kernel reads it unpacked, as it does the first."""
        if self.packing is None or index == 0 or not region.inputs[index].constant:
            return None
        return self.packing(region, config, isa, index)

    def rejection(self, region: Region, isa: Isa) -> str | None:
        """Why it cannot build a region, static or dynamic, or None."""
        reason = self.reject(region, isa)
        return self.reject_dynamic(region, isa) if reason is None and region.is_dynamic else reason


_templates: dict[str, Template[Any]] = {}


def register_template(template: T) -> T:
    """Adds a template; its name must be new."""
    if template.name in _templates:
        raise ValueError(f"template {template.name!r} is registered twice")
    _templates[template.name] = template
    return template


def template_for(op: str) -> Template[Any]:
    """The template that builds regions of kind `op`.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if op not in _templates:
        raise ConfigError(f"no template builds {op!r}; there are {', '.join(sorted(_templates))}")
    return _templates[op]


def has_template(op: str) -> bool:
    """Whether a template builds regions of kind `op`."""
    return op in _templates


def all_templates() -> tuple[Template[Any], ...]:
    """Every registered template, in order of name."""
    return tuple(_templates[name] for name in sorted(_templates))
