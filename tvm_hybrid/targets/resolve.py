"""Targets: the names by which users choose a CPU, and the meaning of `target=None`."""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tvm.target import Target, codegen, list_tags

from microkernels.amx.permission import tile_permission
from microkernels.base.errors import TargetError
from microkernels.base.host_cpu import host_cpu, host_flags
from microkernels.machines.host import describe_file

from ..runtime.threads import ThreadsLike, physical_cores
from .architectures import ARCHITECTURES, TAG_PREFIX, configuration
from .cpu_features import FEATURES

TargetLike: TypeAlias = str | Mapping[str, Any] | Target | None


MachineLike: TypeAlias = str | os.PathLike[str] | None


def resolve_target(target: TargetLike, machine: MachineLike = None) -> Target:
    """Resolves a target as users write it.

    Parameters
    ----------
    target : str, mapping, tvm.target.Target or None
        None for this machine; "tvm_hybrid/spr", "spr" or "sapphirerapids"; any of LLVM's CPU
        names; any tag of TVM's targets; a target dictionary.
    machine : path-like or None
        A file that describes the CPU for cost estimates, as `tvm-hybrid calibrate` writes it; it
        replaces the description in the package. A target dictionary may also name such a file, as
        its "model", by an absolute path.

    Raises
    ------
    TargetError
        If there is no such target, it is not an x86-64 CPU, or the file is not a description.
    """
    if target is None:
        resolved = host_target()
    else:
        resolved = target if isinstance(target, Target) else _parse(target)
        _require_x86(resolved)
    return resolved if machine is None else _described_by(resolved, machine)


def _described_by(target: Target, machine: str | os.PathLike[str]) -> Target:
    """The target with its description file as the attribute `model`, which goes where the target
    goes.
    """
    try:
        path = Path(machine).expanduser().absolute()
    except TypeError:
        raise TargetError(
            f"a machine is the path of a description, not {type(machine).__name__}"
        ) from None
    describe_file(path)
    return Target({"kind": target.kind.name, **target.attrs, "model": str(path)})


@functools.cache
def host_target() -> Target:
    """The target of this machine, without features that a hypervisor hides or Linux denies."""
    cpu = host_cpu()
    named = Target({"kind": "llvm", "mcpu": cpu})
    _require_x86(named)
    config: dict[str, Any] = {"kind": "llvm", "mcpu": cpu, "num-cores": physical_cores()}
    listed = {str(name) for name in codegen.llvm_get_cpu_features(named)}
    denied = not tile_permission().usable
    hidden = [
        f"-{name}"
        for name, feature in FEATURES.items()
        if name in listed
        and ((host_flags() and feature.flag not in host_flags()) or (feature.is_amx and denied))
    ]
    if hidden:
        config["mattr"] = hidden
    return Target(config)


def threads_of(
    target: TargetLike, num_threads: int | None, threads: ThreadsLike = None
) -> int | None:
    """The number of threads that is asked for: `num_threads`, else `num-cores` of the target.

    Parameters
    ----------
    target : str, mapping, tvm.target.Target or None
        As for `resolve_target`. `num-cores` in this machine's own target does not count.
    num_threads : int or None
    threads : int, str, sequence of int or None
        A number, or a place with a known number of cores; the target's `num-cores` is then ignored.

    Returns
    -------
    int or None
        None if no number is asked for.

    Raises
    ------
    TargetError
        If there is no such target, or its `num-cores` is less than 1.
    """
    if target is None or num_threads is not None or threads is not None:
        return num_threads
    resolved = resolve_target(target)
    cores = resolved.attrs.get("num-cores")
    if cores is None:
        return None
    # The target of this machine lists its cores without asking for a number of threads.
    said = {name: str(value) for name, value in resolved.attrs.items() if name != "model"}
    if said == {name: str(value) for name, value in host_target().attrs.items()}:
        return None
    if int(cores) < 1:
        raise TargetError(f"num-cores of a target must be a whole number from 1 up, not {cores}")
    return int(cores)


def cpu_name(target: Target) -> str:
    """LLVM's name of the CPU that a target is for."""
    return str(target.attrs.get("mcpu", "x86-64"))


def _parse(target: str | Mapping[str, Any]) -> Target:
    if isinstance(target, str):
        cpu = ARCHITECTURES.get(target.removeprefix(TAG_PREFIX), target.removeprefix(TAG_PREFIX))
        if cpu in _llvm_cpus():
            return Target(configuration(cpu))
        if target.lstrip().startswith("{"):  # the text of a target
            return _parse(_read_json(target))
        # TVM is not asked for other names: it would warn of devices that are not there.
        if target in Target.list_kinds():
            return _parse({"kind": target})
        if target not in list_tags():
            raise TargetError(_unknown(target, cpu))
        return Target(target)
    if not isinstance(target, Mapping):
        raise TargetError(
            f"a target is a name, a dictionary or a tvm.target.Target, not {type(target).__name__}"
        )
    kind = target.get("kind", "llvm")
    if isinstance(kind, str) and kind in Target.list_kinds():
        _require_llvm(kind)
    try:
        return Target(dict(target))
    except Exception as error:
        *_, last = ("", *str(error).strip().splitlines())
        why = last or type(error).__name__
        raise TargetError(f"not a target: {dict(target)}: {why}") from error


def _read_json(text: str) -> Mapping[str, Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TargetError(f"not a target: {text}: {error}") from error


def _unknown(name: str, cpu: str) -> str:
    known = [*ARCHITECTURES, *ARCHITECTURES.values()]
    close = difflib.get_close_matches(cpu, {*known, *_llvm_cpus()}, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    return f"unknown target {name!r}; {hint}"


def _require_llvm(kind: str) -> None:
    if kind != "llvm":
        raise TargetError(f"target kind {kind!r} is not supported; name a CPU, such as 'spr'")


# LLVM ends the process if x86-64 code lacks a needed feature or has an excluded one.
_NEEDED = {"64bit", "64bit-mode", "sse", "sse2"}
_EXCLUDED = {"32bit-mode", "16bit-mode", "soft-float"}


def _require_x86(target: Target) -> None:
    _require_llvm(target.kind.name)
    triple = str(target.attrs.get("mtriple", "x86_64"))
    if not triple.startswith("x86_64"):
        raise TargetError(f"target {triple!r} is not supported; only x86-64 CPUs are")
    cpu = str(target.attrs.get("mcpu", "x86-64"))
    if cpu not in _llvm_cpus():
        raise TargetError(_unknown(cpu, cpu))
    try:
        features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    except Exception as error:
        raise TargetError(f"not a target: {target}: {error}") from error
    wrong = [f"lacks {name}" for name in sorted(_NEEDED - features)]
    wrong += [f"has {name}" for name in sorted(_EXCLUDED & features)]
    if wrong:
        what = repr(cpu) if "mattr" not in target.attrs else str(target)
        raise TargetError(
            f"target {what} is not supported: it {', '.join(wrong)}; only x86-64 CPUs are"
        )


@functools.cache
def _llvm_cpus() -> frozenset[str]:
    generic = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    return frozenset(str(name) for name in codegen.llvm_get_cpu_archlist(generic))
