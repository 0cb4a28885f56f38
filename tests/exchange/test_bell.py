"""Whoever waits for a bell is woken by it, and looks now and then all the same."""

from __future__ import annotations

import threading
from unittest.mock import Mock

from exchange import bell


def waits(one: bell.Bell) -> list[float]:
    """How long it would wait, by asking the event below it."""
    one._rung = Mock(wraps=one._rung)
    one.wait()
    return [call.args[0] for call in one._rung.wait.call_args_list]


def test_where_nobody_rings_one_looks_often_and_where_somebody_does_seldom() -> None:
    one = bell.Bell()
    assert waits(one) == [bell.OFTEN]
    one.ring()
    assert waits(one) == [bell.SELDOM]


def test_a_ring_is_heard_once_even_if_it_came_before_the_wait() -> None:
    one = bell.Bell()
    one.ring()
    one.wait()
    assert not one._rung.is_set()


def test_it_wakes_a_waiting_thread(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(bell, "SELDOM", 60.0)
    one = bell.Bell()
    one.ring()
    one.wait()  # from now on it waits long
    waiting = threading.Thread(target=one.wait)
    waiting.start()
    one.ring()
    waiting.join(timeout=30.0)
    assert not waiting.is_alive()
