"""`tvm-hybrid records list | show | best | merge | prune | check | export | import`."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from .base.console import show
from .base.options import AT_LEAST_ONE, FILE, FOLDER, json_option

if TYPE_CHECKING:
    from ..records.record import Record
    from ..records.record_file import Located
    from ..records.record_rewrite import Rewritten
    from ..records.record_store import RecordStore
    from ..tvm_routes.metaschedule import Exchange, TraceRecord

EXISTING = click.Path(dir_okay=False, exists=True, path_type=Path)
format_option = click.option(
    "--format",
    expose_value=False,
    type=click.Choice(["metaschedule"]),
    default="metaschedule",
    help="MetaSchedule's JSON database: a folder with two files.",
)


@click.group("records", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Shows, ranks, checks, merges and prunes tuning records."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command("export")
@click.argument("file", type=EXISTING)
@click.argument("folder", metavar="DIR", type=FOLDER)
@format_option
@click.option("--machine", help="Only records of this CPU, by its LLVM name.")
@click.option("--threads", type=AT_LEAST_ONE, help="Only records with this number of threads.")
@click.option(
    "--model", type=EXISTING, help="Also write for the programs that TVM makes of this model."
)
@json_option
def export(file: Path, folder: Path, as_json: bool, **chosen: Any) -> None:
    """Writes the best record of every region into DIR, as a database of MetaSchedule.

    tvm_hybrid.metaschedule.apply_database(mod, DIR) applies it to a module. Records that a schedule
    cannot express are listed with the reason.
    """
    from ..records.record_store import RecordStore
    from ..tvm_routes.metaschedule import export_records

    result = export_records(RecordStore(file), folder, **chosen)
    done = (
        f"{len(result.taken)} regions written as {result.programs} programs, {result.known} known"
    )
    _tell(result, f"{done} already, {len(result.left_out)} left out", as_json)


@command.command("import")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.argument("file", type=FILE)
@format_option
@click.option(
    "--model", type=EXISTING, help="A model whose regions foreign programs are compared with."
)
@json_option
def import_(folder: Path, file: Path, model: Path | None, as_json: bool) -> None:
    """Adds the records of a database in DIR to FILE, unless FILE has them.

    Records that `export` wrote return unchanged. Traces from other sources are kept for recognised
    regions: `list` counts them, `export` writes them back, `compile` never chooses them.
    """
    from ..records.record_store import RecordStore
    from ..tvm_routes.metaschedule import import_records, regions_of_model

    known = [] if model is None else regions_of_model(model)
    result = import_records(folder, RecordStore(file, must_exist=False), known)
    done = f"{len(result.taken)} records added, {result.foreign} of them foreign, {result.known}"
    _tell(result, f"{done} known already, {len(result.left_out)} left out", as_json)


def _tell(result: Exchange, done: str, as_json: bool) -> None:
    names = ("taken", "known", "programs", "foreign")
    found = {
        **{name: getattr(result, name) for name in names},
        **{
            name: [{"what": what, "why": why} for what, why in getattr(result, name)]
            for name in ("left_out", "partly")
        },
    }
    left_out = (f"left out: {name}: {reason}" for name, reason in result.left_out)
    partly = (f"partly: {name}: {reason}" for name, reason in result.partly)
    show(found, as_json, *left_out, *partly, done)


file_argument = click.argument("file", type=FILE)


@command.command("list")
@file_argument
@json_option
def list_(file: Path, as_json: bool) -> None:
    """Counts the measurements of every region, machine and number of threads, one line for each."""
    from ..records.record_store import trusted

    store = _store(file)
    located = list(store)
    rows = []
    names = ("workload", "isa", "machine", "threads", "ok", "failed", "speedup")
    table = Table("region", "isa", "machine", "threads", "ok", "failed", "how", "best")
    for (workload, isa, machine, threads), records in _grouped(located).items():
        statuses = Counter(item.record.status for item in records)
        ok = statuses.pop("ok", 0)
        chosen = trusted(records)
        gain = _speedup(chosen[0].record) if chosen else None
        row = workload, isa, machine, threads, ok, dict(statuses), gain
        rows.append(dict(zip(names, row, strict=True)))
        how = ", ".join(f"{count} {status}" for status, count in statuses.items())
        counts = str(threads), str(ok), str(sum(statuses.values()))
        table.add_row(escape(workload), isa, machine, *counts, how, _times(gain))
    found = {kind: lines for file in store.files for kind, lines in file.others.items() if lines}
    others = [f", {len(lines)} of kind {kind}" for kind, lines in found.items()]
    lines = [f"{len(located)} records of {len(rows)} regions{''.join(others)}"]
    traces: list[TraceRecord] = []
    if "metaschedule" in found:
        from ..tvm_routes.metaschedule import traces_of

        traces = [trace for trace, _ in traces_of(store)]
    for workload in dict.fromkeys(trace.workload for trace in traces):
        of_it = [trace for trace in traces if trace.workload == workload]
        fastest = min(of_it, key=lambda trace: trace.median_us)
        time = f"best {fastest.median_us:.2f} us on {fastest.machine}"
        ran = time if fastest.times_us else "none ran"
        lines.append(f"MetaSchedule: {workload}: {len(of_it)} traces, {ran}; kept, never chosen")
    show(rows, as_json, table, *lines)


@command.command("show")
@file_argument
@click.argument("pattern", default="")
@json_option
def show_(file: Path, pattern: str, as_json: bool) -> None:
    """Shows every measurement, line by line; with a PATTERN, of regions that contain it.

    `list` only counts them.
    """
    located = [item for item in _store(file) if pattern in item.record.workload]

    table = Table("line", "region", "on", "status", "us", "speed-up", "config")
    for record, place in located:
        time = f"{record.median_us:.2f}" if record.times_us else ""
        confirmed = {True: "confirmed", False: "not confirmed", None: ""}[record.confirmed]
        speedup = f"{_times(_speedup(record))} {confirmed}".strip()
        on = f"{record.machine} {record.isa} {record.threads}"
        what = place.rpartition(":")[2], escape(record.workload), on, record.status
        table.add_row(*what, time, speedup, escape(_config(record)))
    show([record for record, _ in located], as_json, table, f"{len(located)} records")


@command.command("best")
@file_argument
@json_option
def best(file: Path, as_json: bool) -> None:
    """Shows what `compile` would choose for every region, machine and number of threads."""

    from ..records.record_store import trusted

    rows = []
    for records in _grouped(list(_store(file))).values():
        rows += trusted(records)[:1]
    names = ("workload", "isa", "machine", "threads", "config", "median_us")
    found = []
    table = Table("region", "isa", "machine", "threads", "us", "speed-up", "config", "line")
    for record, place in rows:
        fields = {name: getattr(record, name) for name in names}
        speedup = _speedup(record)
        found.append({"place": place, **fields, "speedup": speedup, "confirmed": record.confirmed})
        what = escape(record.workload), record.isa, record.machine, str(record.threads)
        times = f"{record.median_us:.2f}", _times(speedup)
        table.add_row(*what, *times, escape(_config(record)), place.rpartition(":")[2])
    show(found, as_json, table)


@command.command("check")
@file_argument
@json_option
def check(file: Path, as_json: bool) -> int:
    """Reports every line that is damaged or unusable for this version; exit code 1 if any.

    Unusable lines: not a whole record, another template version, a configuration that the template
    refuses to build, a key that does not belong to its region.
    """
    from ..records.record_rewrite import problems

    store = _store(file)
    found = problems(store)
    show(found, as_json, *found, f"{sum(1 for _ in store)} records, {len(found)} problems")
    return 1 if found else 0


@command.command("merge")
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, required=True, help="The file to write.")
@json_option
def merge(files: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Writes the lines of several FILES into one, each line once, in their order.

    Lines that cannot be read are left out, and named. OUTPUT may be one of the FILES, even while a
    tuner writes to it.
    """
    from ..records.record_rewrite import merge as merge_files

    _report(merge_files(files, output), output, as_json, dry_run=False)


@command.command("prune")
@file_argument
@click.option(
    "-k",
    "--best",
    default=3,
    type=click.IntRange(min=0),
    help="Configurations to keep of every region, machine and number of threads.",
)
@click.option("--keep-failures", is_flag=True, help="Also keep failed configurations.")
@click.option("--dry-run", is_flag=True, help="Report what would be removed; change nothing.")
@json_option
def prune(file: Path, best: int, keep_failures: bool, dry_run: bool, as_json: bool) -> None:
    """Removes all measurements but the best and the default of every region.

    Also removes measurements of other template versions, repeated measurements and unreadable
    lines. A tuner may be writing to the FILE.
    """
    from ..records.record_rewrite import prune as prune_file

    _report(prune_file(file, best, keep_failures, dry_run), file, as_json, dry_run)


def _report(done: Rewritten, file: Path, as_json: bool, dry_run: bool) -> None:
    removed = {why: count for why, count in done.removed.items() if count}
    text = ", ".join(f"{count} {why}" for why, count in removed.items())
    verb = "would be removed" if dry_run else "removed"
    found = {"kept": done.kept, "removed": removed, "skipped": done.skipped}
    show(found, as_json, *done.skipped, f"{done.kept} lines in {file}; {verb}: {text or 'none'}")


def _store(file: Path) -> RecordStore:
    from ..records.record_store import RecordStore

    return RecordStore(file)


def _grouped(located: list[Located]) -> dict[tuple[str, str, str, int], list[Located]]:
    groups: dict[tuple[str, str, str, int], list[Located]] = defaultdict(list)
    for item in located:
        record = item.record
        groups[record.workload, record.isa, record.machine, record.threads].append(item)
    return groups


def _speedup(record: Record) -> float | None:
    return None if record.relative is None else 1 / record.relative


def _times(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.3f}"


def _config(record: Record) -> str:
    return " ".join(f"{name}={value}" for name, value in record.config.items())
