"""Merges and prunes record files; lines stay as they are, byte by byte.

A file is rewritten under its lock and replaced when complete, so that tuners may continue writing
to it; see `record_file`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tvm.target import Target

from microkernels.base.errors import ConfigError, RecordError, TvmHybridError
from microkernels.base.logs import logger
from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.core.template import has_template, template_for

from .record import Record
from .record_file import (
    Line,
    Located,
    locked,
    not_written,
    read_lines,
    real_path,
    replace_lines,
    require_records,
)
from .record_store import RecordStore, config_key, latest, trusted, why_not_built


@dataclass
class Rewritten:
    """The result of rewriting a file.

    Attributes
    ----------
    kept : int
        Number of lines in the file.
    removed : Counter
        Reason -> number of removed lines.
    skipped : list of str
        Place and reason of each line that was dropped because it cannot be read.
    """

    kept: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)


def merge(paths: Sequence[Path], out: Path) -> Rewritten:
    """Writes the lines of several files into one, each line once, in the order of the files.

    Parameters
    ----------
    paths : sequence of Path
        The files to read. Torn and foreign lines are left out.
    out : Path
        The file to write; if it exists, it must be one of `paths`.

    Raises
    ------
    RecordError
        If a file cannot be read or written, or if lines of `out` would be lost.
    """
    result = Rewritten()

    def merged() -> list[Line]:
        if out.exists() and real_path(out) not in map(real_path, paths):
            raise RecordError(f"{out} is there already; name it among the files to be merged too")
        for path in filter(Path.is_file, paths):
            require_records(path)
        seen: set[bytes] = set()
        lines = []
        for line in (line for path in paths for line in read_lines(path)):
            if line.lost:
                result.skipped.append(f"{line.place}: skipped, {line.problem}")
            elif line.text in seen:
                result.removed["repeated"] += 1
            else:
                seen.add(line.text)
                lines.append(line)
        return lines

    result.kept = _rewrite(out, merged)
    result.removed["unreadable"] = len(result.skipped)
    return result


def prune(
    path: Path, best: int = 3, keep_failures: bool = False, dry_run: bool = False
) -> Rewritten:
    """Keeps the best and the default of each region, ISA, machine and number of threads.

    Of each configuration it keeps the newest measurement, and the newest that says whether it was
    confirmed. It removes records of former template versions, repeated measurements, failures and
    unreadable lines; it keeps lines of other kinds, and of newer versions. A later search measures
    removed configurations again.

    Parameters
    ----------
    path : Path
        The file.
    best : int
        Number of configurations to keep of each region, the default not counted.
    keep_failures : bool
        Whether to keep failed configurations, so that they are not tried again.
    dry_run : bool
        Whether to report only, without writing.

    Raises
    ------
    RecordError
        If the file cannot be read or written.
    """
    result = Rewritten()

    def pruned() -> list[Line]:
        lines = read_lines(path)
        kept = []
        whys = _why_removed(lines, best, keep_failures)
        for line in lines:
            if line.lost:
                result.skipped.append(f"{line.place}: removed, {line.problem}")
            elif line.place in whys:
                result.removed[whys[line.place]] += 1
            else:
                kept.append(line)
        return kept

    if not path.is_file():
        raise RecordError(f"there is no record file {path}")
    require_records(path)
    result.kept = len(pruned()) if dry_run else _rewrite(path, pruned)
    result.removed["unreadable"] = len(result.skipped)
    return result


def _rewrite(path: Path, make: Callable[[], list[Line]]) -> int:
    """Writes the lines of `make`, which is called under the file's lock; returns their number."""
    try:
        with locked(path):
            before = path.read_bytes() if path.exists() else None
            texts = [line.text for line in make()]
            if before != b"".join(text + b"\n" for text in texts):
                replace_lines(path, texts)
            return len(texts)
    except OSError as error:
        raise not_written(path, error) from error


def _why_removed(lines: Iterable[Line], best: int, keep_failures: bool) -> dict[str, str]:
    """Place of a line to remove -> reason."""
    whys: dict[str, str] = {}
    groups: dict[tuple[object, ...], list[Located]] = defaultdict(list)
    for record, place in ((line.record, line.place) for line in lines):
        if record is None:
            continue
        if has_template(record.template) and record.version < template_for(record.template).version:
            whys[place] = "former template version"
        else:
            about = (record.workload, record.template, record.version)
            machine = (record.isa, record.machine, record.threads)
            groups[(*about, *machine)].append(Located(record, place))
    for group in groups.values():
        newest = latest(group)
        judged = latest(item for item in group if item.record.confirmed is not None)
        current = {item.place for item in (*newest, *judged)}
        defaults = {config_key(item.record.config) for item in group if item.record.is_default}
        defaults |= _default_keys(group[0].record)
        keys = (config_key(item.record.config) for item in trusted(group))
        others = [key for key in keys if key not in defaults]
        failed = {config_key(item.record.config) for item in newest if item.record.status != "ok"}
        for record, place in group:
            key = config_key(record.config)
            if place not in current:
                whys[place] = "measured again later"
            elif key in failed:
                if not keep_failures:
                    whys[place] = "failed"
            elif key not in defaults and key not in others[:best]:
                whys[place] = "not among the best"
    return whys


def _default_keys(record: Record) -> set[bytes]:
    """Key of the current default configuration for a record's region and machine, if any."""
    try:
        isa = isa_named(record.isa)
        target = Target({"kind": "llvm", "mcpu": record.machine})
        machine = replace(Machine.from_target(target, record.threads), isa=isa)
        default = template_for(record.template).default_config(record.region, machine)
    except Exception as error:  # contents of a file may break a template in any way
        logger.debug("no default configuration of %s: %s", record.workload, error)
        return set()
    return {config_key(default.to_dict())}


def problems(store: RecordStore) -> list[str]:
    """Describes every line that is damaged or that this version would not use."""
    found = [f"{place}: {problem}" for record, place in store for problem in _of_record(record)]
    return [message for file in store.files for message in file.damaged] + found


def _of_record(record: Record) -> Iterator[str]:
    if record.workload != record.region.key:
        yield f"the key is not that of the region, which is {record.region.key}"
    try:
        template = template_for(record.region.op)
        isa = isa_named(record.isa)
    except TvmHybridError as error:
        yield str(error)
        return
    if record.template != template.name:
        yield f"template {record.template!r} does not build {record.region.op!r}"
    elif record.version != template.version:
        yield f"version {record.version} of {template.name!r}; now it is {template.version}"
    elif record.status == "ok":
        if not record.times_us:
            yield "status ok, but no times"
        try:
            config = template.config_type.from_dict(record.config)
            reason = why_not_built(record.region, template, isa, config)
        except ConfigError as error:
            reason = str(error)
        if reason is not None:
            yield reason
