"""Finds the regions of a module, for tuning."""

from __future__ import annotations

from dataclasses import replace

from tvm import IRModule

from tir_schedules.core.region import Region
from tir_schedules.tensorize.arrangement import ArrangementProblem

from .layout.search_space import LayoutProblem
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


def layout_problems(mod: IRModule, options: PipelineOptions) -> list[LayoutProblem]:
    """What can be chosen about the layouts of each block of a module that has a choice; for tuning.

    The labels of `options.layouts`, if given, are ignored.
    """
    found: list[LayoutProblem] = []
    # `append` returns None, so every block keeps the labels of its cheapest cut.
    asked = replace(options, layouts=found.append)
    run_passes(mod, passes_through(Phase.CLEAN_UP, asked, []), options)
    return found


def arrangement_problems(mod: IRModule, options: PipelineOptions) -> list[ArrangementProblem]:
    """The contractions in a module's programs without operators, also those without a choice.

    What `options.arrange` says is ignored.
    """
    found: list[ArrangementProblem] = []
    # `append` returns None, so every contraction is arranged as the estimate says.
    asked = replace(options, arrange=found.append)
    run_passes(mod, passes_through(Phase.CLEAN_UP, asked, []), options)
    return found
