"""The options of `torch.compile(..., backend="tvm_hybrid", options={...})`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from microkernels.errors import CompileError
from relay_passes.pipeline_options import check_fusion, check_precision
from relay_passes.regions.select_winograd import check_fast_math

from ..targets import TargetLike, resolve_target
from ..threads import VARIABLE, ThreadsLike, resolve_setting


@dataclass(frozen=True)
class TorchOptions:
    """What `tvm_hybrid.compile` takes by the same names; `strict` refuses what else runs eagerly.

    `num_threads` is torch's number, where nothing else says one.
    """

    precision: str = "auto"
    fusion: str = "coarse"
    fast_math: str = "default"
    target: TargetLike = None
    num_threads: int | None = None
    threads: ThreadsLike = None
    records: Any = None
    strict: bool = False

    def of_compile(self) -> dict[str, Any]:
        """The arguments of `tvm_hybrid.compile`."""
        found = {name: value for name, value in vars(self).items() if name != "strict"}
        if self.num_threads is None and self.threads is None and not os.environ.get(VARIABLE):
            found["num_threads"] = torch.get_num_threads()
        return found


def read_options(options: Mapping[str, Any] | None, mode: str | None = None) -> TorchOptions:
    """The options, checked before anything is compiled.

    Raises
    ------
    CompileError
        If there is no such option, no such value of one, or a mode is given.
    TargetError
        If target or threads make no sense.
    RecordError
        If a record file cannot be read.
    """
    from ..tuning.lookup.record_lookup import lookup_of

    known = [each.name for each in fields(TorchOptions)]
    if mode is not None:
        raise CompileError(
            f"the backend tvm_hybrid has no mode {mode!r}; it has the options {', '.join(known)}"
        )
    for name in options or {}:
        if name not in known:
            raise CompileError(f"unknown option {name!r}; the known ones are {', '.join(known)}")
    found = TorchOptions(**(options or {}))
    check_precision(found.precision)
    check_fusion(found.fusion)
    check_fast_math(found.fast_math)
    if not isinstance(found.strict, bool):
        raise CompileError(f"option 'strict' is True or False, not {found.strict!r}")
    resolve_target(found.target)
    resolve_setting(found.threads, found.num_threads, here=found.target is None)
    lookup_of(found.records)
    return found
