"""RecordStore: finds records by region, from one or several files."""

from __future__ import annotations

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from microkernels.base.errors import ConfigError, RecordError, TvmHybridError
from microkernels.base.logs import logger
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, template_for

from .record import Record, RecordLine
from .record_file import Located, RecordFile
from .record_paths import default_record_paths

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Found(NamedTuple):
    """A configuration and its record."""

    config: Config
    record: Record
    place: str
    """FILE:LINE."""


class RecordStore:
    """Records of one or several files; it is thread-safe.

    Parameters
    ----------
    paths : path-like, sequence of path-like, or None
        The files; None: those that `TVM_HYBRID_RECORDS` names. New records go to the first.
    must_exist : bool
        Whether a missing file is an error.

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
        self._mutex = threading.Lock()

    def append(self, record: RecordLine) -> None:
        """Appends one line to the first file; when this returns, the line is on disk.

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
        """Records of one region, file by file, in the order in which they were written."""
        return self.by_workload().get(key, [])

    def by_workload(self) -> Mapping[str, list[Located]]:
        """Key -> records of that region; one object until a file changes."""
        with self._mutex:
            records = [file.refresh() for file in self.files]
            state = tuple((file.generation, len(file.records)) for file in self.files)
            if state != self._indexed:
                index = defaultdict(list)
                for located in itertools.chain(*records):
                    index[located.record.workload].append(located)
                self._index, self._indexed = dict(index), state
            return self._index

    def tried(self, region: Region, template: Template[Any], machine: Machine) -> list[Located]:
        """Records of a region on this machine with equally many threads, failures included."""
        here = (i for i in self.of_workload(region.key) if i.record.machine == machine.name)
        return [item for item in here if item.record.fits(template, machine)]

    def find(self, region: Region, machine: Machine, elsewhere: bool = False) -> Found | None:
        """Finds the best known configuration of exactly this region.

        Records of other thread counts, ISAs or template versions are not used. Once a search has
        confirmed its best, only confirmed ones are used; see `trusted`. A configuration that
        cannot be built any more is skipped with a warning.

        Parameters
        ----------
        elsewhere : bool
            Whether to use records of other machines instead of this one's.
        """
        fitting = self.of_workload(region.key)
        if not fitting:
            return None
        try:
            template = template_for(region.op)
        except ConfigError:
            return None
        there = (i for i in fitting if (i.record.machine != machine.name) is elsewhere)
        fitting = [item for item in there if item.record.fits(template, machine)]
        for record, place in trusted(fitting):
            try:
                config = template.config_type.from_dict(record.config)
                known = (region.key, f"{machine.isa.name} {config}")
                if known not in self._refused:
                    self._refused[known] = why_not_built(region, template, machine.isa, config)
                reason = self._refused[known]
            except ConfigError as error:
                reason = str(error)
            if reason is None:
                return Found(config, record, place)
            logger.warning("%s: this record is not used: %s", place, reason)
        return None


def why_not_built(region: Region, template: Template[Any], isa: Isa, config: Config) -> str | None:
    """Why the template cannot build a configuration; None if it can."""
    try:
        template.build(region, config, isa)
    except TvmHybridError as error:
        return str(error)
    except Exception as error:  # numbers from a file may break a template in any way
        return f"{type(error).__name__}: {error}"
    return None


def latest(records: Iterable[Located]) -> list[Located]:
    """Keeps the newest record of every configuration."""
    newest: dict[bytes, Located] = {}
    for located in records:
        key = config_key(located.record.config)
        newest.pop(key, None)
        newest[key] = located
    return list(newest.values())


def trusted(records: Iterable[Located]) -> list[Located]:
    """Selects records of one region on one machine that may be chosen, best first.

    A search measures its best again, longer, and records whether they are significantly faster than
    the default. If any record has such a result, only confirmed records are trusted, each
    configuration by its newest result; the default always counts as confirmed. Configurations whose
    newest measurement failed are not trusted. Without any such result, records that were slower
    than the default are not trusted.
    """
    records = list(records)
    judged = [item for item in records if item.record.confirmed is not None]
    if not judged:
        return [item for item in ranked(records) if (item.record.relative or 1.0) <= 1.0]
    bad = (item.record for item in latest(records) if item.record.status != "ok")
    failed = {config_key(record.config) for record in bad}
    confirmed = [item for item in latest(judged) if item.record.confirmed]
    return ranked(item for item in confirmed if config_key(item.record.config) not in failed)


def ranked(records: Iterable[Located]) -> list[Located]:
    """Sorts the successful records, newest of each configuration, fastest first.

    They are compared by their time relative to the default, measured in turns; if some record lacks
    it (written by hand), by their times. Ties are ordered by configuration, not by line.
    """
    ok = [item for item in latest(records) if item.record.status == "ok" and item.record.times_us]
    compared = all(item.record.relative is not None for item in ok)

    def order(item: Located) -> tuple[float, bytes]:
        time = (item.record.relative or 0.0) if compared else item.record.median_us
        return time, config_key(item.record.config)

    return sorted(ok, key=order)


def config_key(config: dict[str, object]) -> bytes:
    """A key that is equal for equal configurations, regardless of the order of fields."""
    return msgspec.json.encode(config, order="deterministic")


# ConfigSpace: a template's legal configurations for a region, as points of a grid of knobs.
#
# A knob is a field of the Config (of a nested one: "matmuls.0.rows"); its values are those in the
# space. A point holds the index of each knob's value. Not every point of the grid is a legal
# configuration, so searches work on indices into the list of legal ones.


class ConfigSpace:
    """The legal configurations of one region, each once; the default is the first.

    Parameters
    ----------
    default : Config
        The template's default configuration.
    configs : iterable of Config
        The other configurations; may contain the default.

    Attributes
    ----------
    configs : tuple of Config
        All configurations.
    knobs : tuple of str
        The fields in which configurations differ.
    values : tuple of tuple
        The values of each knob, sorted.
    points : numpy.ndarray
        [configurations, knobs], int32: the index of each knob's value.
    """

    def __init__(self, default: Config, configs: Iterable[Config]) -> None:
        unique: dict[bytes, Config] = {}
        for config in (default, *configs):
            unique.setdefault(config_key(config.to_dict()), config)
        self.configs = tuple(unique.values())
        self._index = {key: number for number, key in enumerate(unique)}
        rows = [dict(flat_fields(config.to_dict())) for config in self.configs]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: [row.get(name) for row in rows] for name in names}
        values = {name: sorted(set(column), key=_order) for name, column in columns.items()}
        self.knobs = tuple(name for name in names if len(values[name]) > 1)
        self.values = tuple(tuple(values[name]) for name in self.knobs)
        self.points = np.zeros((len(rows), len(self.knobs)), np.int32)
        for knob, name in enumerate(self.knobs):
            number = {value: i for i, value in enumerate(self.values[knob])}
            self.points[:, knob] = [number[value] for value in columns[name]]

    @staticmethod
    def of(region: Region, template: Template[Any], machine: Machine) -> ConfigSpace:
        """Makes the template's space for a region, in an order that is equal in every process."""

        def place(config: Config) -> list[tuple[str, tuple[int, float, str]]]:
            return [(name, _order(value)) for name, value in flat_fields(config.to_dict())]

        configs = sorted(template.space(region, machine), key=place)
        return ConfigSpace(template.default_config(region, machine), configs)

    def __len__(self) -> int:
        return len(self.configs)

    def index_of(self, config: Config) -> int | None:
        """Index of a configuration; None if the space lacks it."""
        return self._index.get(config_key(config.to_dict()))


def flat_fields(fields: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) for every leaf of nested dictionaries and lists."""
    if isinstance(fields, dict):
        items: Iterable[tuple[Any, Any]] = fields.items()
    elif isinstance(fields, (list, tuple)):
        items = enumerate(fields)
    else:
        yield prefix, fields
        return
    for name, value in items:
        yield from flat_fields(value, f"{prefix}.{name}" if prefix else str(name))


def _order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 0, 0.0, ""
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")
