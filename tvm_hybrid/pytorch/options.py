"""The options of `torch.compile(..., backend="tvm_hybrid", options={...})`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from microkernels.base.errors import CompileError

from ..options import CodeKeywords, CompileOptions, Records, check_options, given, setting_of
from ..runtime.threads import VARIABLE, ThreadsLike
from ..targets.resolve import TargetLike


class TorchKeywords(CodeKeywords, total=False):
    """Options of `torch.compile`; `CompileOptions` explains all but `strict`."""

    target: TargetLike
    threads: ThreadsLike
    records: Records
    strict: bool


@dataclass(frozen=True)
class TorchOptions:
    """What was chosen for graphs of torch.

    Attributes
    ----------
    compile : CompileOptions
        How graphs are compiled.
    strict : bool
        Whether what else runs eagerly is refused.
    """

    compile: CompileOptions
    strict: bool = False

    def of_compile(self) -> CompileOptions:
        """How a graph is compiled now: with torch's number of threads, if nothing says another."""
        options = self.compile
        if {"num_threads", "threads"} & given(options) or os.environ.get(VARIABLE):
            return options
        return replace(options, num_threads=torch.get_num_threads())


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
    given, known = dict(options or {}), list(TorchKeywords.__annotations__)
    if mode is not None:
        raise CompileError(
            f"the backend tvm_hybrid has no mode {mode!r}; it has the options {', '.join(known)}"
        )
    for name in given:
        if name not in known:
            raise CompileError(f"unknown option {name!r}; the known ones are {', '.join(known)}")
    strict = given.pop("strict", False)
    if not isinstance(strict, bool):
        raise CompileError(f"option 'strict' is True or False, not {strict!r}", argument="strict")
    chosen = CompileOptions(**given)
    check_options(chosen)
    setting_of(chosen, here=chosen.target is None)
    return TorchOptions(chosen, strict)
