"""Compares the outcomes of tests under TVM's pipeline and under ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .runs import Outcome


@dataclass(frozen=True)
class Comparison:
    """What became of each test.

    Attributes
    ----------
    stock, ours : mapping of str to Outcome
        By the names of tests: under TVM's pipeline, and under ours.
    excluded : mapping of str to str
        Name of a test, without its parameters -> why it does not count.
    """

    stock: Mapping[str, Outcome]
    ours: Mapping[str, Outcome]
    excluded: Mapping[str, str]

    def groups(self) -> dict[str, list[str]]:
        """The names of tests by what became of them."""
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
        """Tests that pass with TVM's pipeline and do not with ours."""
        return self.groups()[LOST]

    def report(self) -> str:
        """Counts, then each test that is lost or excluded, in Markdown."""
        groups = self.groups()
        compiled = [each for each in self.ours.values() if each.modules]
        with_regions = [each for each in compiled if each.regions]
        lines = ["| tests that | |", "|---|---|"]
        lines += [f"| {title} | {len(names)} |" for title, names in groups.items()]
        lines += [
            "",
            f"{len(compiled)} tests compiled {sum(each.modules for each in compiled)} modules with "
            f"our pipeline; in those of {len(with_regions)} tests templates of ours took "
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
