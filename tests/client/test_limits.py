"""A client's time limit: it cuts off, it lets others through, and it gives other people's alarms back."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from thistle.client.limits import Alarm, CutOff


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    with Alarm() as alarm:
        alarm.set(seconds)
        yield


def test_whoever_is_in_time_notices_nothing() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with Alarm() as alarm:
        for _ in range(3):
            alarm.set(60)
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 50
            alarm.clear()
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_the_next_client_has_its_own_time() -> None:
    with Alarm() as alarm:
        for seconds in (0.1, 0.2):
            alarm.set(seconds)
            with pytest.raises(CutOff, match=f"cut off after {seconds} s"):
                time.sleep(5)
        alarm.set(5)
        time.sleep(0.05)


def test_a_hang_is_cut_off_even_where_exceptions_are_swallowed() -> None:
    def stubborn() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(100)

    with pytest.raises(CutOff, match=r"cut off after 0\.2 s"), time_limit(0.2):
        stubborn()


def test_an_alarm_that_was_set_before_still_rings() -> None:
    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    left, interval = signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        with pytest.raises(CutOff), time_limit(0.1):
            time.sleep(5)
        assert not rung and 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 2.0
        with time_limit(60):
            time.sleep(2)
        while not rung:
            time.sleep(0.01)
        assert rung == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, handler)


def test_other_threads_are_let_alone() -> None:
    done: list[bool] = []

    def work() -> None:
        with time_limit(0.05):
            time.sleep(0.2)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


STUCK = """
import ctypes, thistle.client.limits as limits
limits.GRACE = 0.2
with limits.Watchdog(0.2, mortal=True) as watchdog:
    watchdog.watch()
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
"""


def test_a_hang_in_native_code_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr and "time_limit" not in done.stdout


def test_a_watchdog_leaves_those_alone_who_are_in_time() -> None:
    code = """
import time, thistle.client.limits as limits
limits.GRACE = 1.5
for mortal in (True, False):
    with limits.Watchdog(0.5, mortal) as watchdog:
        for _ in range(6):
            watchdog.watch()
            time.sleep(0.4)
time.sleep(2.1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
