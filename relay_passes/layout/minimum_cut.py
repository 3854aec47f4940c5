"""LayoutCut: gives every node of a graph one of two labels, with the cheapest reorders.

A tensor that is stored under one label and read under the other is reordered, once for all its
readers. With two labels that is a minimum cut: nodes on the side of the source get FIRST, nodes on
the side of the sink LAST. For a tensor v, its readers u.. and the price c of a reorder there are
two helper nodes,

    v --c--> a --inf--> u..         a stands for "v, LAST": paid if v is FIRST and a reader LAST
    u.. --inf--> z --c--> v         z stands for "v, FIRST": paid if v is LAST and a reader FIRST

The flow is Dinic's (E. A. Dinic, 1970): shortest paths by levels, then a blocking flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

FIRST, LAST = 0, 1
_UNBOUNDED = 1 << 100


class LayoutCut:
    """A graph of nodes to label, the costs of their labels, and the cheapest labels.

    Prices are integers. `FIRST` and `LAST` are themselves nodes, with these labels.
    """

    def __init__(self) -> None:
        self._heads: list[int] = []
        self._room: list[int] = []
        self._edges: list[list[int]] = [[], []]

    def node(self) -> int:
        """Adds a node."""
        self._edges.append([])
        return len(self._edges) - 1

    def price(self, node: int, label: int, cost: int) -> None:
        """Sets the cost of a label of a node."""
        if label == LAST:
            self._edge(FIRST, node, cost)
        else:
            self._edge(node, LAST, cost)

    def forbid(self, node: int, label: int) -> None:
        """Forbids a label of a node."""
        self.price(node, label, _UNBOUNDED)

    def reorder(self, tensor: int, readers: Iterable[int], cost: int) -> None:
        """Sets the cost of reordering a tensor, which is paid if a reader has another label."""
        readers = set(readers)
        if len(readers) == 1:
            (reader,) = readers
            self._edge(tensor, reader, cost)
            self._edge(reader, tensor, cost)
        elif readers:
            last, first = self.node(), self.node()
            self._edge(tensor, last, cost)
            self._edge(first, tensor, cost)
            for reader in readers:
                self._edge(last, reader, _UNBOUNDED)
                self._edge(reader, first, _UNBOUNDED)

    def solve(self) -> list[int]:
        """The label of every node.

        Of several cheapest solutions, the one with the most nodes LAST, which is unique.
        """
        while True:
            levels = self._levels()
            if levels[LAST] < 0:
                return [FIRST if level >= 0 else LAST for level in levels]
            self._block(levels)

    def _edge(self, tail: int, head: int, cost: int) -> None:
        for start, end, room in ((tail, head, cost), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._room.append(room)

    def _levels(self) -> list[int]:
        """Distance from the source along edges with room; -1 if there is no path."""
        levels = [-1] * len(self._edges)
        levels[FIRST] = 0
        queue = deque([FIRST])
        while queue:
            tail = queue.popleft()
            for edge in self._edges[tail]:
                head = self._heads[edge]
                if self._room[edge] and levels[head] < 0:
                    levels[head] = levels[tail] + 1
                    queue.append(head)
        return levels

    def _block(self, levels: list[int]) -> None:
        """Saturates shortest paths until none is left."""
        tried = [0] * len(self._edges)
        path: list[int] = []
        tail = FIRST
        while True:
            if tail == LAST:
                room = min(self._room[edge] for edge in path)
                for edge in path:
                    self._room[edge] -= room
                    self._room[edge ^ 1] += room
                path, tail = [], FIRST
            elif tried[tail] < len(self._edges[tail]):
                edge = self._edges[tail][tried[tail]]
                head = self._heads[edge]
                if self._room[edge] and levels[head] == levels[tail] + 1:
                    path.append(edge)
                    tail = head
                else:
                    tried[tail] += 1
            elif path:
                edge = path.pop()
                tail = self._heads[edge ^ 1]
                tried[tail] += 1
            else:
                return
