"""`tvm-hybrid records show | best | check FILE`: looks into record files."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..report.console import output_console, print_json
from .options import json_option

if TYPE_CHECKING:
    from ..tuning.record import Record
    from ..tuning.records import Located, RecordStore

file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.group("records")
def command() -> None:
    """Shows, ranks and checks tuning records."""


@command.command("show")
@file_argument
@json_option
def show(file: Path, as_json: bool) -> None:
    """Counts the measurements of every region, machine and number of threads."""
    import msgspec

    located = list(_store(file))
    if as_json:
        print_json([msgspec.to_builtins(item.record) for item in located])
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("region", "isa", "machine", "threads", "ok", "failed", "how")
    for (workload, isa, machine, threads), records in _grouped(located).items():
        statuses = Counter(item.record.status for item in records)
        ok = statuses.pop("ok", 0)
        how = ", ".join(f"{count} {status}" for status, count in statuses.items())
        table.add_row(
            escape(workload), isa, machine, str(threads), str(ok), str(statuses.total()), how
        )
    console = output_console()
    console.print(table)
    console.print(f"{len(located)} records", highlight=False)


@command.command("best")
@file_argument
@json_option
def best(file: Path, as_json: bool) -> None:
    """Shows the best configuration of every region, machine and number of threads."""
    from ..tuning.records import ranked

    rows = []
    for records in _grouped(list(_store(file))).values():
        rows += ranked(records)[:1]
    if as_json:
        print_json([{"place": item.place, **_summary(item.record)} for item in rows])
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("region", "isa", "machine", "threads", "us", "speed-up", "config", "line")
    for record, place in rows:
        config = " ".join(f"{name}={value}" for name, value in record.config.items())
        speedup = "" if record.relative is None else f"{1 / record.relative:.3f}"
        table.add_row(
            escape(record.workload),
            record.isa,
            record.machine,
            str(record.threads),
            f"{record.median_us:.2f}",
            speedup,
            escape(config),
            place.rpartition(":")[2],
        )
    output_console().print(table)


@command.command("check")
@file_argument
@json_option
def check(file: Path, as_json: bool) -> int:
    """Reports every line that is damaged, or that this version would not use; exit code 1 if any.

    Lines that cannot be used: not a whole record, another template version, a configuration that
    the template refuses to build, a key that does not belong to its region.
    """
    from ..tuning.check_records import problems

    store = _store(file)
    found = problems(store)
    if as_json:
        print_json(found)
    else:
        console = output_console()
        for problem in found:
            console.print(problem, highlight=False, soft_wrap=True, markup=False)
        count = sum(1 for _ in store)
        console.print(f"{count} records, {len(found)} problems", highlight=False)
    return 1 if found else 0


def _store(file: Path) -> RecordStore:
    from ..tuning.records import RecordStore

    return RecordStore(file)


def _grouped(
    located: list[Located],
) -> dict[tuple[str, str, str, int], list[Located]]:
    groups: dict[tuple[str, str, str, int], list[Located]] = defaultdict(list)
    for item in located:
        record = item.record
        groups[record.workload, record.isa, record.machine, record.threads].append(item)
    return groups


def _summary(record: Record) -> dict[str, object]:
    return {
        "workload": record.workload,
        "isa": record.isa,
        "machine": record.machine,
        "threads": record.threads,
        "config": record.config,
        "median_us": record.median_us,
        "speedup": None if record.relative is None else 1 / record.relative,
    }
