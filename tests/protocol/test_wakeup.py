"""A waiting thread is woken, and still polls now and then."""

from __future__ import annotations

import threading
from unittest.mock import Mock

from thistle.protocol import wakeup


def waits(one: wakeup.Wakeup) -> list[float]:
    """How long it would wait, by asking the event below it."""
    one._notified = Mock(wraps=one._notified)
    one.wait()
    return [call.args[0] for call in one._notified.wait.call_args_list]


def test_where_nobody_notifies_one_looks_often_and_where_somebody_does_seldom() -> None:
    one = wakeup.Wakeup()
    assert waits(one) == [wakeup.OFTEN]
    one.notify()
    assert waits(one) == [wakeup.SELDOM]


def test_a_notification_is_heard_once_even_if_it_came_before_the_wait() -> None:
    one = wakeup.Wakeup()
    one.notify()
    one.wait()
    assert not one._notified.is_set()


def test_it_wakes_a_waiting_thread(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(wakeup, "SELDOM", 60.0)
    one = wakeup.Wakeup()
    one.notify()
    one.wait()  # from now on it waits long
    waiting = threading.Thread(target=one.wait)
    waiting.start()
    one.notify()
    waiting.join(timeout=30.0)
    assert not waiting.is_alive()
