"""A batch of candidates that several agents work on, each in a thread of this process."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from ..measuring.local_measurer import with_best
from ..measuring.measure import Measurement
from .agent import Agent, Lost
from .worker import RemoteJob

logger = logging.getLogger("tvm_hybrid")

MOST_LOSSES = 2
"""So many servers or workers lost with a candidate are the candidate's doing."""


class Batch:
    """Candidates that are to be measured once each.

    Parameters
    ----------
    tasks : sequence of RemoteJob
        The candidates. If their effort names the best so far, what is found becomes the best for
        those that follow.

    Attributes
    ----------
    left : int
        How many `finished` has not told yet.
    agents : sequence of Agent
        Who works.
    """

    def __init__(self, tasks: Sequence[RemoteJob]) -> None:
        self._tasks, self._effort = tasks, tasks[0].job.effort
        self._todo = deque(range(len(tasks)))
        self._losses = [0] * len(tasks)
        self._open = self.left = len(tasks)
        self._changed = threading.Condition()
        self._stopped = False
        self._outcomes: queue.Queue[tuple[int, Measurement] | Exception] = queue.Queue()
        self._threads: list[threading.Thread] = []
        self.agents: Sequence[Agent] = ()

    def start(self, agents: Sequence[Agent]) -> None:
        """Has agents work on it."""
        self.agents = agents
        for agent in agents:
            thread = threading.Thread(target=self._work, args=(agent,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def finished(self, seconds: float) -> Iterator[tuple[int, Measurement]]:
        """The candidates that are done, by number; waits so long for the first.

        Raises
        ------
        TvmHybridError
            If an agent cannot go on; what is done comes first.
        """
        error = None
        try:
            outcome = self._outcomes.get(timeout=seconds)
            while True:
                if isinstance(outcome, Exception):
                    error = outcome
                else:
                    self.left -= 1
                    yield outcome
                outcome = self._outcomes.get_nowait()
        except queue.Empty:
            if error is not None:
                raise error from None

    def stop(self) -> None:
        """Ends what is still going on; an agent that was busy starts anew when it is next used."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for agent, thread in zip(self.agents, self._threads, strict=True):
            killed = False
            while thread.is_alive():
                if self._open:
                    agent.kill()
                    killed = True
                thread.join(0.1)
            if killed:
                agent.rest()

    def _work(self, agent: Agent) -> None:
        while (number := self._next()) is not None:
            job = msgspec.structs.replace(self._tasks[number].job, effort=self._effort)
            try:
                outcome = agent.measure(msgspec.structs.replace(self._tasks[number], job=job))
            except Exception as error:  # whoever reads the outcomes raises it
                self._outcomes.put(error)
                return
            self._note(number, outcome)

    def _next(self) -> int | None:
        """A candidate to measure, perhaps one that another agent gives back; None: all are done."""
        with self._changed:
            while not self._todo and self._open and not self._stopped:
                self._changed.wait()
            return None if self._stopped or not self._todo else self._todo.popleft()

    def _note(self, number: int, outcome: Measurement | Lost) -> None:
        with self._changed:
            if self._stopped:
                return
            if isinstance(outcome, Lost):
                self._losses[number] += outcome.blamed
                if self._losses[number] < MOST_LOSSES:
                    logger.warning("lost, the candidate goes elsewhere: %s", outcome.reason)
                    self._todo.append(number)
                    self._changed.notify()
                    return
                text = f"{MOST_LOSSES} servers or workers were lost with it; at last "
                outcome = Measurement(status="runtime_error", error=text + outcome.reason)
            self._effort = with_best(self._effort, outcome)
            self._outcomes.put((number, outcome))
            self._open -= 1
            if not self._open:
                self._changed.notify_all()
