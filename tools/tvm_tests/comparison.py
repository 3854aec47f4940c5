"""Compares the outcomes of tests under TVM's pipeline and under ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .runs import Outcome


@dataclass(frozen=True)
class Comparison:
    """Outcomes of tests under both pipelines."""

    stock: Mapping[str, Outcome]  # name of a test -> outcome under TVM's pipeline
    ours: Mapping[str, Outcome]  # name of a test -> outcome under our pipeline
    excluded: Mapping[str, str]  # name of a test without parameters -> why it does not count

    def groups(self) -> dict[str, list[str]]:
        """The names of tests, grouped by their two outcomes."""
        found: dict[str, list[str]] = {
            title: [] for title in (PASS, FAIL, "skipped", "pass with ours only", "excluded", LOST)
        }
        for name in dict.fromkeys([*self.stock, *self.ours]):
            found[self._group(name)].append(name)
        return found

    def _group(self, name: str) -> str:
        stock, ours = (each.get(name, _MISSING).outcome for each in (self.stock, self.ours))
        if stock == "passed" == ours:
            return PASS
        if stock == "passed":
            return "excluded" if reason_for(name, self.excluded) else LOST
        if ours == "passed":
            return "pass with ours only"
        return "skipped" if "skipped" in (stock, ours) else FAIL

    def lost(self) -> list[str]:
        """Tests that pass with TVM's pipeline but not with ours."""
        return self.groups()[LOST]

    def report(self) -> str:
        """Counts, then each lost or excluded test, in Markdown."""
        groups = self.groups()
        compiled = [each for each in self.ours.values() if each.modules]
        with_regions = [each for each in compiled if each.regions]
        lines = ["| tests that | |", "|---|---|"]
        lines += [f"| {title} | {len(names)} |" for title, names in groups.items()]
        lines += [
            "",
            f"{len(compiled)} tests compiled {sum(each.modules for each in compiled)} modules with "
            f"our pipeline; in {len(with_regions)} of these tests our templates took "
            f"{sum(each.regions for each in compiled)} nodes.",
        ]
        for name in groups["excluded"]:
            lines.append(f"- excluded: `{name}`: {reason_for(name, self.excluded)}")
        for name in groups[LOST]:
            outcome = self.ours.get(name, _MISSING)
            lines.append(f"- {LOST}: `{name}`: {outcome.outcome}: {outcome.error}")
        return "\n".join(lines) + "\n"


PASS, FAIL, LOST = "pass with both", "fail with both", "pass with TVM's only"
_MISSING = Outcome("missing", "it has no outcome")


def reason_for(name: str, excluded: Mapping[str, str]) -> str:
    """Why a test does not count; "" if it does."""
    return excluded.get(name.partition("[")[0], "")
