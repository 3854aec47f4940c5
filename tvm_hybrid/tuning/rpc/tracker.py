"""A client of TVM's RPC tracker, which hands out servers: who there is, and the next free one.

`tvm.rpc.TrackerSession` does the same, but it tries for a minute to reach a tracker and connects to
the server in the same breath; here both can be told apart, and fail at once.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from microkernels.base.errors import ServerError
from microkernels.base.tvm_compat.runtime import count_servers, greet, request_server

SECONDS = 10.0
Answer = TypeVar("Answer")


class Address(msgspec.Struct, frozen=True):
    """Where a tracker listens, and the key of the servers to ask it for.

    Attributes
    ----------
    host : str
    port : int
    key : str
    """

    host: str
    port: int
    key: str

    @staticmethod
    def parse(text: str, key: str) -> Address:
        """The address written as HOST:PORT.

        Raises
        ------
        ServerError
            If it is not written so, or there is no key.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ServerError(f"a tracker is written HOST:PORT, such as localhost:9190: {text!r}")
        if not key:
            raise ServerError(
                "a tracker needs the key of the servers that may measure; "
                "name it with --key, as they were started with"
            )
        return Address(host.strip("[]"), int(port), key)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Server(msgspec.Struct, frozen=True):
    """A server that the tracker handed out.

    Attributes
    ----------
    host : str
    port : int
    password : str
        What it expects of the client that it was handed to.
    """

    host: str
    port: int
    password: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Tracker:
    """A connection to a tracker.

    Raises
    ------
    ServerError
        If there is no tracker at that address.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        try:
            self._socket = socket.create_connection((address.host, address.port), SECONDS)
            answer = greet(self._socket)
        except (OSError, struct.error) as error:
            raise self._unreachable(error) from error
        if answer is not None:
            raise self._unreachable(f"something else answers there: {answer:#x}")

    def servers(self) -> int:
        """How many servers of the key there are, free or not."""
        return self._ask(count_servers)

    def request(self) -> Server:
        """The next free server of the key; waits until there is one."""
        self._socket.settimeout(None)
        return Server(*self._ask(request_server))

    def _ask(self, question: Callable[[socket.socket, str], Answer]) -> Answer:
        try:
            return question(self._socket, self.address.key)
        except (OSError, ValueError, TypeError, struct.error) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, reason: object) -> ServerError:
        return ServerError(
            f"no tracker at {self.address} ({reason}); start one there: "
            f"python -m tvm.exec.rpc_tracker --port {self.address.port}"
        )

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
