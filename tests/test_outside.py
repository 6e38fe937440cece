"""What an engine holds is ended by its own words: a hanging engine takes bounded time, and nothing passes for proved that is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pytest_codeprobe.children import outside
from pytest_codeprobe.children.outside import Ending, Outside

ENV = {"PATH": os.defpath}


def finish(ending: Ending) -> None:
    """As a keeper does: wait for its processes, look at the time."""
    until = time.monotonic() + 20
    while ending.pid:
        assert time.monotonic() < until
        ending.check_time()
        pid, status = os.waitpid(ending.pid, os.WNOHANG)
        if pid:
            assert ending.took(pid, status)
        time.sleep(0.01)


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_an_end_that_hangs_or_fails_is_tried_again_and_never_proved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(outside, "SECONDS", 0.3)
    for script in ("sleep 600 & sleep 600", "exit 1"):
        ending = Ending(sh(script), ENV)
        for _ in range(outside.TRIES):
            assert not ending.over
            ending.begin()
            finish(ending)
        assert ending.over
        assert not ending.done
    mark = tmp_path / "mark"
    second = Ending(sh(f"[ -e {mark} ] || {{ touch {mark}; exit 1; }}"), ENV)
    second.begin()
    finish(second)
    assert not second.over
    second.begin()
    finish(second)
    assert second.over
    assert second.done


def test_what_ended_beside_the_client_proves_nothing() -> None:
    """A client that was killed could have gone on making the container meanwhile."""
    held = Outside({"stop_argv": sh("exit"), "end_argv": sh("exit 0"), "env": ENV})
    assert not held.ended(client_is_gone=False)
    finish(held.ending)
    assert held.ended(client_is_gone=False)
    assert held.ending.done
    assert not held.gone()  # begins the one that counts
    finish(held.ending)
    assert held.gone()
    assert held.ending.done
    after = Outside({"stop_argv": sh("exit"), "end_argv": sh("exit 0"), "env": ENV})
    assert not after.ended(client_is_gone=True)
    finish(after.ending)
    assert after.gone()
