"""RecordStore: the records of some files, found by region; lowering asks it for configurations."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from microkernels.errors import ConfigError, RecordError, TvmHybridError
from tir_schedules.config import Config
from tir_schedules.machine import Machine
from tir_schedules.region import Region
from tir_schedules.template import Template, template_for

from .record import Record
from .record_file import Located, RecordFile

logger = logging.getLogger("tvm_hybrid")

RECORDS_VARIABLE = "TVM_HYBRID_RECORDS"
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def default_record_paths() -> list[Path]:
    """The files that `TVM_HYBRID_RECORDS` names, separated as in PATH; those there are."""
    paths = []
    for name in os.environ.get(RECORDS_VARIABLE, "").split(os.pathsep):
        if name and Path(name).is_file():
            paths.append(Path(name))
        elif name:
            logger.warning("%s names %s, which is not a file", RECORDS_VARIABLE, name)
    return paths


class RecordStore:
    """Records of one or several files.

    Parameters
    ----------
    paths : path-like, sequence of path-like, or None
        The files; None takes those that `TVM_HYBRID_RECORDS` names. Records are appended to the
        first.
    must_exist : bool
        Whether a file that is not there is an error.

    Raises
    ------
    RecordError
        If `must_exist` and a file is missing.
    """

    def __init__(self, paths: Paths | None = None, *, must_exist: bool = True) -> None:
        names: Iterable[str | os.PathLike[str]]
        if paths is None:
            names = default_record_paths()
        else:
            names = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        self.files = [RecordFile(name) for name in names]
        for file in self.files:
            if file.path.is_dir() or (must_exist and not file.path.exists()):
                raise RecordError(f"there is no record file {file.path}")
        self._index: dict[str, list[Located]] = {}
        self._indexed: tuple[tuple[int, int], ...] = ()
        self._refused: dict[tuple[str, str], str | None] = {}

    def append(self, record: Record) -> None:
        """Adds one record to the first file; when this returns, it is on the disk.

        Raises
        ------
        RecordError
            If there is no file, or it cannot be written.
        """
        if not self.files:
            raise RecordError("this record store has no file to write to")
        self.files[0].append(record)

    def __iter__(self) -> Iterator[Located]:
        for file in self.files:
            yield from file

    def of_workload(self, key: str) -> list[Located]:
        """The records of one region, file by file, in the order in which they were written."""
        for file in self.files:
            file.refresh()
        state = tuple((file.generation, len(file.records)) for file in self.files)
        if state != self._indexed:
            index = defaultdict(list)
            for file in self.files:
                for located in file.records:
                    index[located.record.workload].append(located)
            self._index, self._indexed = dict(index), state
        return self._index.get(key, [])

    def tried(self, region: Region, template: Template, machine: Machine) -> list[Located]:
        """What was tried for a region on this very machine with as many threads, come what may."""
        return [
            located
            for located in self.of_workload(region.key)
            if located.record.fits(template, machine) and located.record.machine == machine.name
        ]

    def lookup(self, region: Region, machine: Machine) -> tuple[Config, str] | None:
        """The best known configuration.

        A record of this machine comes before one of another machine with the same ISA, which is
        used if there is nothing else. Records of other thread counts or template versions are not
        used. A configuration that cannot be built any more is passed over with a warning.

        Returns
        -------
        tuple of (Config, str), or None
            The configuration and "record FILE:LINE".
        """
        fitting = self.of_workload(region.key)
        if not fitting:
            return None
        try:
            template = template_for(region.op)
        except ConfigError:
            return None
        fitting = [item for item in fitting if item.record.fits(template, machine)]
        here = [item for item in fitting if item.record.machine == machine.name]
        elsewhere = [item for item in fitting if item.record.machine != machine.name]
        for group in (here, elsewhere):
            for record, place in ranked(group):
                config = self._buildable(region, template, machine, record, place)
                if config is not None:
                    foreign = "" if group is here else f" (measured on {record.machine})"
                    return config, f"record {place}{foreign}"
        return None

    def _buildable(
        self, region: Region, template: Template, machine: Machine, record: Record, place: str
    ) -> Config | None:
        try:
            config = template.config_type.from_dict(record.config)
            known = (region.key, f"{machine.isa.name} {config}")
            if known not in self._refused:
                self._refused[known] = _why_not(region, template, machine, config)
            reason = self._refused[known]
        except ConfigError as error:
            reason = str(error)
        if reason is not None:
            logger.warning("%s: this record is not used: %s", place, reason)
            return None
        return config


def _why_not(region: Region, template: Template, machine: Machine, config: Config) -> str | None:
    """None if the template builds the configuration, else the reason why not."""
    try:
        template.build(region, config, machine.isa)
    except TvmHybridError as error:
        return str(error)
    except Exception as error:  # a number from a file may break a template in any way
        return f"{type(error).__name__}: {error}"
    return None


def latest(records: Iterable[Located]) -> list[Located]:
    """The newest record of every configuration: a later measurement replaces an earlier one."""
    newest: dict[bytes, Located] = {}
    for located in records:
        key = config_key(located.record.config)
        newest.pop(key, None)
        newest[key] = located
    return list(newest.values())


def ranked(records: Iterable[Located]) -> list[Located]:
    """The successful records, newest of each configuration, fastest first.

    They are compared by their quotient to the default configuration measured in turns with them;
    if some record lacks it (one written by hand), by their times. Equals are ordered by their
    configurations, wherever in the file they stand.
    """
    ok = [item for item in latest(records) if item.record.status == "ok" and item.record.times_us]
    compared = all(item.record.relative is not None for item in ok)

    def order(item: Located) -> tuple[float, bytes]:
        time = (item.record.relative or 0.0) if compared else item.record.median_us
        return time, config_key(item.record.config)

    return sorted(ok, key=order)


def config_key(config: dict[str, object]) -> bytes:
    """Equal for equal configurations, whatever the order of their fields."""
    import msgspec

    return msgspec.json.encode(config, order="deterministic")
