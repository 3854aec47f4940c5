"""`tvm-hybrid records export FILE DIR` and `import DIR FILE`: databases of other tuners."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import print_json, say
from .options import AT_LEAST_ONE, FILE, FOLDER, json_option

if TYPE_CHECKING:
    from ..records.record_store import RecordStore
    from ..tvm_routes.metaschedule import Exchange

format_option = click.option(
    "--format",
    "_format",
    type=click.Choice(["metaschedule"]),
    default="metaschedule",
    show_default=True,
    help="MetaSchedule's JSON database: a folder with two files.",
)


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.argument("folder", metavar="DIR", type=FOLDER)
@format_option
@click.option("--machine", help="Only records of this CPU, by its LLVM name.")
@click.option("--threads", type=AT_LEAST_ONE, help="Only records of so many threads.")
@click.option(
    "--model",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Write also for the programs that TVM makes of this model.",
)
@json_option
def export(
    file: Path,
    folder: Path,
    _format: str,
    machine: str | None,
    threads: int | None,
    model: Path | None,
    as_json: bool,
) -> None:
    """Writes the best record of every region into DIR, as a database of MetaSchedule.

    tvm_hybrid.metaschedule.apply_database(mod, DIR) applies it to a module. What a schedule cannot
    express is listed with the reason.
    """
    from ..records.record_store import RecordStore
    from ..tvm_routes.metaschedule import export_records

    result = export_records(RecordStore(file), folder, machine, threads, model)
    if as_json:
        print_json(_as_json(result))
        return
    _show(result)
    say(
        f"{len(result.taken)} regions written as {result.programs} programs, {result.known} known "
        f"already, {len(result.left_out)} left out"
    )


@click.command("import")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.argument("file", type=FILE)
@format_option
@click.option(
    "--model",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A model whose regions foreign programs are compared with.",
)
@json_option
def import_(folder: Path, file: Path, _format: str, model: Path | None, as_json: bool) -> None:
    """Adds the records of a database in DIR to FILE, those that it lacks.

    What `export` wrote comes back as it was. Traces of others are kept for regions that are
    recognised: `list` counts them, `export` writes them back, `compile` never chooses them.
    """
    from ..records.record_store import RecordStore
    from ..tvm_routes.metaschedule import import_records, regions_of_model

    known = [] if model is None else regions_of_model(model)
    result = import_records(folder, RecordStore(file, must_exist=False), known)
    if as_json:
        print_json(_as_json(result))
        return
    _show(result)
    say(
        f"{len(result.taken)} records added, {result.foreign} of them foreign, {result.known} "
        f"known already, {len(result.left_out)} left out"
    )


def show_traces(store: RecordStore) -> None:
    """Says what traces of others a store holds, if any."""
    if not any("metaschedule" in file.others for file in store.files):
        return
    from ..tvm_routes.metaschedule import traces_of

    traces = [trace for trace, _ in traces_of(store)]
    for workload in dict.fromkeys(trace.workload for trace in traces):
        of_it = [trace for trace in traces if trace.workload == workload]
        best = min(of_it, key=lambda trace: trace.median_us)
        time = f"best {best.median_us:.2f} us on {best.machine}" if best.times_us else "none ran"
        say(f"MetaSchedule: {workload}: {len(of_it)} traces, {time}; kept, never chosen")


def _show(result: Exchange) -> None:
    for name, reason in result.left_out:
        say(f"left out: {name}: {reason}")
    for name, reason in result.partly:
        say(f"partly: {name}: {reason}")


def _as_json(result: Exchange) -> dict[str, object]:
    def pairs(found: list[tuple[str, str]]) -> list[dict[str, str]]:
        return [{"what": name, "why": reason} for name, reason in found]

    return {
        "taken": result.taken,
        "known": result.known,
        "programs": result.programs,
        "foreign": result.foreign,
        "left_out": pairs(result.left_out),
        "partly": pairs(result.partly),
    }
