"""Explanation: the decision for every node of a model, with kernel, configuration and reason."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import msgspec

from relay_passes.ir.decisions import Decision

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class Shown(ABC):
    """Base of results that can be shown as a table."""

    @abstractmethod
    def table(self) -> Table:
        """The result as a table."""

    def print(self, console: Console | None = None) -> None:
        """Prints the table on a console; on standard output by default.

        A console that is too narrow for the table gets a list.
        """
        from rich.console import Console

        from .tables import shown_on

        console = console or Console()
        console.print(shown_on(console, self.table()))

    def __str__(self) -> str:
        """The table as text, 160 characters wide, without colours."""
        from rich.console import Console

        text = io.StringIO()
        Console(width=160, color_system=None, file=text).print(self.table())
        return text.getvalue().rstrip("\n")


class Explanation(Shown, Sequence[Decision]):
    """A sequence of decisions that can be shown as a table.

    Parameters
    ----------
    decisions : sequence of Decision
        In the order of the model.
    program : str
        Text in front of the summary, such as which of several programs this is; "" for none.
    """

    def __init__(self, decisions: Sequence[Decision], program: str = "") -> None:
        self._decisions = tuple(decisions)
        self._program = program

    def noting(self, text: str) -> Explanation:
        """A copy with another note in front of the summary."""
        return Explanation(self._decisions, "; ".join(filter(None, [text, self._program])))

    @overload
    def __getitem__(self, index: int) -> Decision: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Decision]: ...

    def __getitem__(self, index: int | slice) -> Decision | Sequence[Decision]:
        return self._decisions[index]

    def __len__(self) -> int:
        return len(self._decisions)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._decisions)

    @property
    def taken(self) -> tuple[Decision, ...]:
        """The decisions for nodes that a template of ours builds."""
        return tuple(decision for decision in self if decision.taken)

    @property
    def left(self) -> tuple[Decision, ...]:
        """The decisions for nodes that fall back to the generic schedule."""
        return tuple(decision for decision in self if not decision.taken)

    def summary(self) -> str:
        """One line: how many nodes were taken, and the sources of their configurations."""
        sources = [decision.source for decision in self.taken]
        recorded = sum(source.startswith(("record ", "shipped record ")) for source in sources)
        borrowed = sum(source.startswith("borrowed ") for source in sources)
        text = f"{len(self.taken)} of {len(self)} nodes taken"
        text += f", {recorded} of them with a tuned configuration" if recorded else ""
        text += f", {borrowed} with one of a similar region" if borrowed else ""
        return f"{self._program}: {text}" if self._program else text

    def to_json(self) -> str:
        """The decisions as a JSON array."""
        return msgspec.json.encode(self._decisions).decode()

    def table(self) -> Table:
        """The decisions as a table."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self.summary(), title_justify="left")
        has_origins = any(decision.origins for decision in self)
        first = "ONNX nodes" if has_origins else "node"
        for column in (first, "operators", "taken", "kernel", "configuration", "from", "why"):
            table.add_column(column, overflow="fold")
        for decision in self:
            config = ", ".join(f"{name}={value}" for name, value in decision.config.items())
            why = decision.reason
            why += f"; on vectors: {decision.on_vectors}" if decision.on_vectors else ""
            why += f"; at run time: {decision.at_run_time}" if decision.at_run_time else ""
            about = "\n".join(decision.origins) or decision.node, decision.op
            taken = "yes" if decision.taken else "no"
            cells = (*about, taken, decision.kernel, config, decision.source, why)
            table.add_row(*map(Text, cells))  # Text, so that brackets are not read as markup
        return table
