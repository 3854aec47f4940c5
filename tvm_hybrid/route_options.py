"""The options of the routes that TVM's users know, checked before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tvm import IRModule
from tvm.relax.analysis import definable_tir_vars_in_type

from microkernels.errors import CompileError
from microkernels.isa import target_isa
from relay_passes.decisions import DecisionLog, uses_half_tiles, uses_tiles
from relay_passes.dump_ir import require_folder
from relay_passes.entries import MAIN
from relay_passes.ir.rewrite import is_relax
from relay_passes.pipeline_options import PipelineOptions, check_fusion, check_precision
from relay_passes.regions.select_winograd import check_fast_math

from .api import PathLike, Records, warn_if_slow
from .cpu_features import required_features
from .cpu_guard import Guard
from .featureless import warn_if_featureless
from .manifest import Coverage, package_versions
from .record_use import RecordUse, uses_in
from .targets import MachineLike, TargetLike, cpu_name, resolve_target, threads_of
from .threads import resolve_threads
from .tuning.lookup.layout_lookup import with_records
from .tuning.lookup.record_lookup import lookup_of

MANIFEST = "tvm_hybrid.manifest"
"""Attribute of a module that came out of a route: a `RouteManifest` as JSON."""


class RouteManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a module was made for; fields as of `tvm_hybrid.manifest.Manifest`."""

    versions: dict[str, str]
    cpu: str
    target: str
    isa: str
    features: tuple[str, ...]
    threads: int
    precision: str
    fusion: str
    fast_math: str
    coverage: Coverage
    records: tuple[RecordUse, ...]


@dataclass(frozen=True)
class RouteOptions:
    """What a user of a route has chosen; the target may follow when the route runs.

    Attributes
    ----------
    machine, precision, fusion, fast_math, records, num_threads, strict, dump_ir
        As for `tvm_hybrid.compile`.
    decisions : list of Decision
        Gets what was decided, behind what it has.
    """

    machine: MachineLike = None
    precision: str = "auto"
    fusion: str = "coarse"
    fast_math: str = "default"
    records: Records = None
    num_threads: int | None = None
    strict: bool | str = False
    dump_ir: PathLike | None = None
    decisions: DecisionLog = field(default_factory=list)

    def check(self) -> None:
        """Refuses values that make no sense.

        Raises
        ------
        CompileError, TargetError, RecordError, OutputError
            As `tvm_hybrid.compile`; a CompileError also if `strict` or `decisions` is something
            else than it has to be.
        """
        check_precision(self.precision)
        check_fusion(self.fusion)
        check_fast_math(self.fast_math)
        if not isinstance(self.strict, bool) and self.strict != "open":
            raise CompileError(f"strict is True, False or 'open', not {self.strict!r}")
        if not isinstance(self.decisions, list):
            kind = type(self.decisions).__name__
            raise CompileError(f"decisions is a list that gets the decisions, not a {kind}")
        if self.num_threads is not None:
            resolve_threads(self.num_threads)
        if self.machine is not None:
            resolve_target(None, self.machine)
        lookup_of(self.records)
        if self.dump_ir is not None:
            require_folder(Path(self.dump_ir))

    def for_target(self, named: TargetLike, mod: IRModule) -> PipelineOptions:
        """The options of the passes.

        Parameters
        ----------
        named : str, mapping, tvm.target.Target or None
            As for `tvm_hybrid.compile`.
        mod : tvm.IRModule
            What is compiled.

        Raises
        ------
        TargetError
            If there is no such target, or it has a wrong number of cores.
        """
        target = resolve_target(named, self.machine)
        warn_if_featureless(target)
        if self.precision == "bf16":
            warn_if_slow(cpu_name(target), target_isa(target).name)
        threads = resolve_threads(threads_of(named, self.num_threads), here=named is None)
        options = PipelineOptions(
            target,
            threads,
            strict=_has_open_sizes(mod) if self.strict == "open" else bool(self.strict),
            dump_ir=None if self.dump_ir is None else Path(self.dump_ir),
            precision=self.precision,
            fusion=self.fusion,
            fast_math=self.fast_math,
        )
        return with_records(options, lookup_of(self.records))


def _has_open_sizes(mod: IRModule) -> bool:
    """Whether sizes of the inputs of `main` are open."""
    main = next((f for gvar, f in mod.functions_items() if gvar.name_hint == MAIN), None)
    return is_relax(main) and any(definable_tir_vars_in_type(var.ty) for var in main.params)


def guard_for(options: PipelineOptions, decisions: DecisionLog) -> Guard:
    """What a guard of the code has to ask for."""
    tiles = uses_tiles(decisions)
    features = required_features(options.target, tiles, uses_half_tiles(decisions))
    return Guard(cpu_name(options.target), features, tiles)


def with_manifest(mod: IRModule, options: PipelineOptions, decisions: DecisionLog) -> IRModule:
    """What a route has made of a module, with what is known about it as an attribute."""
    manifest = RouteManifest(
        versions=package_versions(),
        cpu=cpu_name(options.target),
        target=str(options.target),
        isa=target_isa(options.target).name,
        features=guard_for(options, decisions).features,
        threads=options.threads,
        precision=options.precision,
        fusion=options.fusion,
        fast_math=options.fast_math,
        coverage=Coverage(sum(each.taken for each in decisions), len(decisions)),
        records=uses_in(options.lookup),
    )
    return mod.with_attr(MANIFEST, msgspec.json.encode(manifest).decode())
