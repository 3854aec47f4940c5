"""What is wrong with a record file: for `tvm-hybrid records check`."""

from __future__ import annotations

from collections.abc import Iterator

from microkernels.base.errors import ConfigError, TvmHybridError
from microkernels.isa import isa_named
from tir_schedules.core.template import template_for

from .record import Record
from .record_store import RecordStore, why_not_built


def problems(store: RecordStore) -> list[str]:
    """One sentence for every line that is damaged or that this version would not use."""
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
