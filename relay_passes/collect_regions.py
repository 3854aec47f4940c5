"""Finds the regions of a module, for tuning."""

from __future__ import annotations

from dataclasses import replace

from tvm import IRModule

from tir_schedules.core.region import Region

from .pipeline import Phase
from .pipeline_options import PipelineOptions
from .regions.partition import region_counts
from .run_passes import passes_through, run_passes


def collect_regions(mod: IRModule, options: PipelineOptions) -> list[Region]:
    """The different regions of a module, in order of their functions' names."""
    return [region for region, _ in count_regions(mod, options)]


def count_regions(
    mod: IRModule, options: PipelineOptions, strict: bool = False
) -> list[tuple[Region, int]]:
    """The different regions of a module and how often it calls each; for tuning.

    What no template takes is no region; a CompileError if `strict`.
    """
    asked = replace(options, strict=strict)
    return region_counts(run_passes(mod, passes_through(Phase.FORM_REGIONS, asked, []), options))
