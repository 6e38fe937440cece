"""Hands an open descriptor to a process in a container, through a socket that is mounted there; see `children/take_input.py`."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from pathlib import Path

from pytest_codeprobe.sandboxes.trees import remove_tree

NAME = "s"  #: of the socket in its folder
_SECONDS = 120.0  #: in which the process is to ask for it


class Handover:
    """A socket in a new folder, that hands a copy of the descriptor to the first who connects. OSError if it can't be made."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        folder.mkdir(0o700)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours, self._theirs = socket.socketpair()
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{place}/{NAME}")  # however long the path is
        finally:
            os.close(place)
        self._listener.listen(1)
        self._descriptor = os.dup(descriptor)
        self._thread = threading.Thread(target=self._serve, name="codeprobe-handover", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody gets it any more. Idempotent."""
        self._theirs.close()
        self._thread.join()

    def _serve(self) -> None:
        with self._listener, self._ours, selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._ours, selectors.EVENT_READ)
            try:
                ready = [key.fileobj for key, _ in selector.select(_SECONDS)]
                if self._listener in ready:
                    channel, _ = self._listener.accept()
                    with channel:
                        socket.send_fds(channel, [b"."], [self._descriptor])
            except OSError:
                return  # it went away: its end says the rest
            finally:
                os.close(self._descriptor)  # or its end would not be seen
                remove_tree(self.folder)
