"""What TVM's RPC tracker is told and answers.

Needs of `tvm.rpc.base` the number that both sides begin with, the codes of questions, and how a
message is written: a length and JSON.
"""

from __future__ import annotations

import socket
import struct
from typing import Any


def greet(connection: socket.socket) -> int | None:
    """Says who is calling; a number if something else than a tracker answers.

    Raises
    ------
    OSError, struct.error
        If nothing answers.
    """
    from tvm.rpc import base

    connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
    answer = int(struct.unpack("<i", base.recvall(connection, 4))[0])
    return None if answer == base.RPC_TRACKER_MAGIC else answer


def count_servers(connection: socket.socket, key: str) -> int:
    """How many servers of a key there are, free or not; raises as `request_server`."""
    from tvm.rpc import base

    found = _ask(connection, [base.TrackerCode.SUMMARY])
    return sum(info.get("key") == f"server:{key}" for info in found["server_info"])


def request_server(connection: socket.socket, key: str) -> tuple[str, int, str]:
    """Host, port and password of the next free server of a key; waits until there is one.

    Raises
    ------
    OSError, ValueError, TypeError, struct.error
        If the tracker does not answer, or says that it cannot.
    """
    from tvm.rpc import base

    host, port, password = _ask(connection, [base.TrackerCode.REQUEST, key, "", 1])
    return host, port, password


def _ask(connection: socket.socket, question: list[Any]) -> Any:
    from tvm.rpc import base

    base.sendjson(connection, question)
    code, answer = base.recvjson(connection)
    if code != base.TrackerCode.SUCCESS:
        raise ValueError(f"it answers {code}")
    return answer
