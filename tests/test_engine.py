"""Threads that run trials: slots, holds, and a system that gives no more threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pytest_codeprobe.trial.engine import Closed, Slots, ThreadEngine

TRIAL: Any = object()


def test_no_more_threads_than_the_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer run at once, and none is lost."""
    start, given = threading.Thread.start, list[threading.Thread]()

    def sparing(thread: threading.Thread) -> None:
        if len(given) == 2:
            raise RuntimeError("can't start new thread")
        given.append(thread)
        start(thread)

    engine = ThreadEngine(8, lambda trial: trial)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(threading.Thread, "start", sparing)
    futures = [engine.submit(TRIAL) for _ in range(20)]
    assert all(f.result(10) is TRIAL for f in futures)
    assert engine.threads == 2
    engine.close()


def test_not_even_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    engine = ThreadEngine(8, lambda trial: trial)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(RuntimeError):
        engine.submit(TRIAL)
    engine.close()


def test_closing_cancels_what_has_not_begun() -> None:
    began, go = threading.Event(), threading.Event()

    def whole(trial: Any) -> Any:
        began.set()
        go.wait(10)
        return trial

    engine = ThreadEngine(1, whole)
    first, second = engine.submit(TRIAL), engine.submit(TRIAL)
    assert began.wait(10)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not second.cancelled():
        time.sleep(0.01)
    go.set()
    closing.join(10)
    assert first.result(0) is not None
    assert engine.submit(TRIAL).cancelled()


def test_an_exception_is_the_futures() -> None:
    def whole(trial: Any) -> Any:
        raise SystemExit(3)

    engine = ThreadEngine(2, whole)
    future = engine.submit(TRIAL)
    with pytest.raises(SystemExit):
        future.result(10)
    engine.close()


def in_a_thread(slots: Slots) -> tuple[threading.Thread, list[str]]:
    """A thread that wants a slot; what became of it."""
    said: list[str] = []

    def work() -> None:
        try:
            with slots.taken():
                said.append("had it")
        except Closed:
            said.append("closed")

    thread = threading.Thread(target=work)
    thread.start()
    return thread, said


def test_pytests_thread_comes_first() -> None:
    slots = Slots(1)
    slots.take_first()
    thread, said = in_a_thread(slots)
    assert slots.try_first()  # it has one
    slots.give_first()
    thread.join(10)
    assert said == ["had it"]


@pytest.mark.parametrize("keep", ["hold", "over"])
def test_what_keeps_threads_from_beginning(keep: str) -> None:
    slots = Slots(1)
    if keep == "hold":
        slots.hold()
    for _ in range(4 if keep == "over" else 0):
        slots.over()
    thread, said = in_a_thread(slots)
    thread.join(0.1)
    assert said == []
    assert slots.try_first() == (keep == "over")  # pytest's own thread is who tells
    slots.give_first()
    if keep == "hold":
        slots.go_on()
        assert slots.try_first()  # it had asked
        slots.give_first()
    else:
        slots.told()
    thread.join(10)
    assert said == ["had it"]


def test_closed_while_one_waits() -> None:
    slots = Slots(1)
    slots.hold()
    thread, said = in_a_thread(slots)
    slots.close()
    thread.join(10)
    assert said == ["closed"]
