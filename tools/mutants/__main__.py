"""The command line of the package."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table

from .runs import FOLDER, KILLED, Mutation, MutationError, Verdict, chosen, copy_tree, judge, load

ROOT = Path(__file__).resolve().parents[2]
_EXISTING = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "lists", is_flag=True, help="Show the mutations and run nothing.")
@click.option("--jobs", default=1, show_default=True, help="Mutations at once.")
@click.option("--timeout", default=900.0, show_default=True, help="Seconds for one mutation.")
@click.option("--mutations", default=FOLDER, type=_EXISTING, help="A folder of other lists.")
@click.option("--root", default=ROOT, type=_EXISTING, help="Another project.")
def main(
    names: tuple[str, ...], lists: bool, jobs: int, timeout: float, mutations: Path, root: Path
) -> None:
    """Runs the tests of each mutation of a condition that guards correctness.

    NAMES are names of mutations or patterns such as 'layout-*'; by default, all run except
    equivalent ones. Ends with 1 unless the tests kill every mutation. The tests must pass without
    mutations.
    """
    try:
        known = load(mutations)
        selected = chosen(known, names)
    except MutationError as error:
        raise click.UsageError(str(error)) from error
    console = Console()
    if lists:
        _print_list(console, chosen(known, names or ("*",)))
        return
    verdicts = _run(selected, root, jobs, timeout)
    _print_verdicts(console, selected, verdicts)
    sys.exit(any(each.status != KILLED for each in verdicts))


def _run(selected: list[Mutation], root: Path, jobs: int, timeout: float) -> list[Verdict]:
    with TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(min(jobs, len(selected))):
            trees.put(copy_tree(root, Path(folder, str(number), root.name)))

        def run(mutation: Mutation) -> Verdict:
            tree = trees.get()
            try:
                verdict = judge(tree, mutation, timeout)
            finally:
                trees.put(tree)
            click.echo(f"{mutation.name}: {verdict.status} ({verdict.seconds:.0f} s)", err=True)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            waiting = [pool.submit(run, mutation) for mutation in selected]
            try:
                return [each.result() for each in waiting]
            except BaseException:  # Ctrl-C: running mutations finish, no others start
                pool.shutdown(cancel_futures=True)
                raise


def _print_list(console: Console, mutations: list[Mutation]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("mutation", "file", "what goes wrong"):
        table.add_column(column, overflow="fold")
    for each in mutations:
        equivalent = f"equivalent: {each.equivalent}"
        table.add_row(each.name, each.file, equivalent if each.equivalent else each.why)
    console.print(table)


def _print_verdicts(console: Console, selected: list[Mutation], verdicts: list[Verdict]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("mutation", "verdict", "s", "by"):
        table.add_column(column, overflow="fold", justify="right" if column == "s" else "left")
    for mutation, verdict in zip(selected, verdicts, strict=True):
        by = verdict.detail
        if verdict.status != KILLED:
            by = f"{verdict.detail or mutation.why}\n{mutation.file}"
        table.add_row(mutation.name, verdict.status, f"{verdict.seconds:.0f}", by)
    console.print(table, markup=False)
    counts = Counter(each.status for each in verdicts)
    console.print(", ".join(f"{count} {status}" for status, count in counts.items()))


if __name__ == "__main__":
    main()
