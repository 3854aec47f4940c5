"""The command line of the package."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from .comparison import Comparison
from .files import EXCLUDED, FILES
from .runs import Outcome, run_file


@click.command()
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--select",
    multiple=True,
    help="A file of the checkout, or `file::test`; several are possible. Default: the usual list.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report to this file, too.",
)
@click.option("--timeout", default=300.0, show_default=True, help="Most seconds for one test.")
@click.option("--jobs", default=1, show_default=True, help="Number of processes that run tests.")
def main(
    checkout: Path, select: tuple[str, ...], report: Path | None, timeout: float, jobs: int
) -> None:
    """Runs TVM's own tests from CHECKOUT with TVM's pipeline and with ours.

    Ends with 1 if a test passes with TVM's pipeline but not with ours.
    """
    checkout = checkout.resolve()
    files = list(select) or FILES
    missing = [name for name in files if not (checkout / name.partition("::")[0]).is_file()]
    if missing:
        raise click.UsageError(f"{checkout} has no {', '.join(missing)}; is it a checkout of TVM?")

    def run(task: tuple[str, bool]) -> dict[str, Outcome]:
        file, ours = task
        found = run_file(checkout, file, ours, timeout)
        passed = sum(each.outcome == "passed" for each in found.values())
        whose = "ours" if ours else "TVM's"
        click.echo(f"{file}, {whose}: {passed} of {len(found)} pass", err=True)
        return found

    tasks = [(file, ours) for file in files for ours in (False, True)]
    outcomes: dict[bool, dict[str, Outcome]] = {False: {}, True: {}}

    with ThreadPoolExecutor(jobs) as pool:
        for (_, ours), found in zip(tasks, pool.map(run, tasks), strict=True):
            outcomes[ours] |= found
    comparison = Comparison(outcomes[False], outcomes[True], EXCLUDED)
    text = comparison.report()
    click.echo(text)
    if report is not None:
        report.write_text(text)
    sys.exit(bool(comparison.lost()))


if __name__ == "__main__":
    main()
