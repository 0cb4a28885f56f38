"""How a Ray is kept to itself: variables that Ray reads and does not document."""

from __future__ import annotations

PRIVATE_RAY = {
    "RAY_ADDRESS": "local",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's way to say: loopback only
    "RAY_task_events_report_interval_ms": "0",  # nobody asks Ray for the history of its tasks, which only grows
    "RAY_worker_niceness": "0",  # Ray's 15 leaves a worker next to nothing beside any other busy process
    "RAY_prestart_worker_first_driver": "0",  # Flower's workers want another environment than those
}
