"""Template: what builds and describes one kind of region, and the registry of all templates.

A template's file ends with `register_template(Template(...))`. Lowering, tuning and the contract
tests take every template that is registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from tvm import relax, tirx

from microkernels.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine

from .config import Config
from .loop_nest import LoopNest
from .product import Product
from .region import Region

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Packing(Generic[C]):
    """How a template wants its constant inputs; every face takes the input's number.

    Attributes
    ----------
    pack : callable
        (region, config, isa, index, array) -> the array that `build` reads.
    unpack : callable
        (region, config, isa, index, expr) -> Relax expression of the original input from its packed
        form: the inverse of `pack`, kept as a meaning rather than computed.
    shape : callable
        (region, config, isa, index) -> shape of the packed array.
    express : callable or None
        (region, config, isa, index, expr) -> Relax expression that packs an input; None if the
        template has none, and takes constants alone.
    """

    pack: Callable[[Region, C, Isa, int, np.ndarray], np.ndarray]
    unpack: Callable[[Region, C, Isa, int, relax.Expr], relax.Expr]
    shape: Callable[[Region, C, Isa, int], tuple[int, ...]]
    express: Callable[[Region, C, Isa, int, relax.Expr], relax.Expr] | None = None


def _none(*_: Any) -> Iterator[Any]:
    """Nothing is described."""
    return iter(())


@dataclass(frozen=True)
class Template(Generic[C]):
    """How regions of one kind are built.

    Attributes
    ----------
    name : str
        Equal to the `op` of the regions it builds.
    config_type : type
        Its subclass of Config.
    default_config : callable
        (region, machine) -> Config, by closed formula; good without any tuning.
    space : callable
        (region, machine) -> iterator of legal Configs, the default among them.
    check : callable
        (region, config, isa) -> anything; raises ConfigError, at no cost worth mentioning, for a
        configuration that is not legal for the region.
    build : callable
        (region, config, isa) -> PrimFunc whose parameters are inputs, operands, output.
        Raises ConfigError for a configuration that is not legal for the region.
    kernel_name : callable
        (region, config, isa) -> name of the microkernel, or of the schedule, that does the work.
    flops : callable
        (region) -> floating-point or integer operations of the anchor.
    reference : callable
        (region, inputs) -> the anchor's result by numpy, for tests and for checking candidates
        while tuning: in float64 or, if every kernel finds the same, in float32 or integers.
    reject : callable
        (region, isa) -> None if the template can build the region, else the reason why not.
    opens : callable or None
        (region, isa) -> None if the template builds a region with sizes that are known at run time
        only, else the reason why not; `reject` has been asked before. None: it builds none.
    at_run_time : callable
        (region, config) -> what the kernel of a region with such sizes decides when it runs, in
        words.
    by_values : callable
        (region, config) -> what its kernel decides by the values that it gets, in words; "" if
        nothing.
    packing : Packing or None
        How constant inputs are laid out; None if they are read as they are.
    nests : callable
        (region, config) -> its loop nests, in the order in which they run. Without them, a cost
        model knows only the configuration itself.
    estimate : callable or None
        (region, config, machine) -> cycles, by the template's own formula. What all configurations
        have in common may be missing from it.
    refuses_loans : bool
        Whether a configuration that was tuned for another region is left, if `estimate` finds it
        worse here than there.
    products : callable
        (region, config, machine) -> its matrix products: for predictions, and for the reason why
        one is not on tiles (AMX).
    why_vectors : callable or None
        (region, config, machine with tiles) -> why products stay on vectors, "" if none does; None
        if its products tell.
    version : int
        Raised when a change makes old measurements meaningless.
    """

    name: str
    config_type: type[C]
    default_config: Callable[[Region, Machine], C]
    space: Callable[[Region, Machine], Iterator[C]]
    check: Callable[[Region, C, Isa], object]
    build: Callable[[Region, C, Isa], tirx.PrimFunc]
    kernel_name: Callable[[Region, C, Isa], str]
    flops: Callable[[Region], int]
    reference: Callable[[Region, list[np.ndarray]], np.ndarray]
    reject: Callable[[Region, Isa], str | None]
    opens: Callable[[Region, Isa], str | None] | None = None
    at_run_time: Callable[[Region, C], str] = lambda _region, _config: ""
    by_values: Callable[[Region, C], str] = lambda _region, _config: ""
    packing: Packing[C] | None = None
    nests: Callable[[Region, C], Iterator[LoopNest]] = _none
    estimate: Callable[[Region, C, Machine], float] | None = None
    refuses_loans: bool = False
    products: Callable[[Region, C, Machine], Iterator[Product]] = _none
    why_vectors: Callable[[Region, C, Machine], str] | None = None
    version: int = 1

    def rejection(self, region: Region, isa: Isa) -> str | None:
        """Why it cannot build a region, or None."""
        reason = self.reject(region, isa)
        if reason is not None or not region.is_open:
            return reason
        if self.opens is None:
            return f"{self.name} needs sizes that are known when it is compiled"
        return self.opens(region, isa)


_templates: dict[str, Template[Any]] = {}


def register_template(template: Template[C]) -> Template[C]:
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
