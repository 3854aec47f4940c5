"""What the routes that TVM's users know make of options, and what they note in a module."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from tvm import IRModule
from tvm.relax.analysis import definable_tir_vars_in_type

from microkernels.isa import target_isa
from relay_passes.ir.decisions import DecisionLog, uses_half_tiles, uses_tiles
from relay_passes.ir.entries import MAIN
from relay_passes.ir.rewrite import is_relax
from relay_passes.pipeline_options import PipelineOptions

from ..api import warn_if_slow
from ..library.manifest import ChosenOptions, Coverage, package_versions
from ..library.record_use import RecordUse, uses_in
from ..options import CompileOptions, passes_options, records_of, setting_of, target_of
from ..targets.cpu_features import required_features
from ..targets.cpu_guard import Guard
from ..targets.featureless import warn_if_featureless
from ..targets.resolve import cpu_name

MANIFEST = "tvm_hybrid.manifest"
"""Attribute of a module that came out of a route: a `RouteManifest` as JSON."""


class RouteManifest(ChosenOptions, frozen=True, kw_only=True):
    """What a module was made for; fields as of `tvm_hybrid.manifest.Manifest`."""

    versions: dict[str, str]
    cpu: str
    target: str
    isa: str
    features: tuple[str, ...]
    threads: int
    coverage: Coverage
    records: tuple[RecordUse, ...]


def route_passes(options: CompileOptions, mod: IRModule) -> PipelineOptions:
    """The options of the passes over a module that somebody else compiles.

    Raises
    ------
    TargetError
        If there is no such target, or it has a wrong number of cores.
    """
    target = target_of(options)
    warn_if_featureless(target)
    if options.precision == "bf16":
        warn_if_slow(cpu_name(target), target_isa(target).name)
    threads = setting_of(options, here=options.target is None).count
    if options.strict == "open":
        options = replace(options, strict=_has_open_sizes(mod))
    return passes_options(options, target, threads, records_of(options))


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
        **options.code(),
        coverage=Coverage(sum(each.taken for each in decisions), len(decisions)),
        records=uses_in(options.lookup),
    )
    return mod.with_attr(MANIFEST, msgspec.json.encode(manifest).decode())
