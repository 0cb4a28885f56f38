"""What a server is doing, for Prometheus: its text format, on loopback, made from the services and the run folders.

By hand, because it is a page of text: the client library is a registry and an own thread for the same lines.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from thistle.deploy.service import Service
from thistle.deploy.state import State
from thistle.deploy.submissions import Submission, submitted
from thistle.experiments.errors import UserError
from thistle.experiments.runfolder import read_lines
from thistle.server.recording.sites import EXCLUDED, tally

LOOPBACK = "127.0.0.1"
RUNS = 5
"""The runs that were submitted last."""
CONTENT = "text/plain; version=0.0.4; charset=utf-8"
HELP = {
    "thistle_process_up": ("gauge", "1 while a process of the server answers"),
    "thistle_process_starts_total": ("counter", "how often a process was started since thistle deploy server was"),
    "thistle_disk_free_bytes": ("gauge", "free where the server keeps its state"),
    "thistle_certificate_days_left": ("gauge", "until the server's certificate ends"),
    "thistle_run_going_on": ("gauge", "1 while a process works on the run"),
    "thistle_run_rounds_total": ("counter", "rounds that are done"),
    "thistle_run_last_round_timestamp_seconds": ("gauge", "when the last of them was over"),
    "thistle_run_round_seconds": ("gauge", "how long the last of them took"),
    "thistle_run_accuracy": ("gauge", "on the test set, at the last evaluation"),
    "thistle_run_loss": ("gauge", "on the test set, at the last evaluation"),
    "thistle_run_bytes_up_total": ("counter", "that clients have sent"),
    "thistle_site_replies_total": ("counter", "of a site, by verdict; faint: accepted with almost no weight"),
    "thistle_site_rounds_left_out_total": (
        "counter",
        "rounds in which more of a site's replies were excluded than used",
    ),
    "thistle_site_rounds_silent_total": ("counter", "rounds in which no reply of a site came"),
}
"""Every metric, its type and what it says."""


@dataclass(frozen=True)
class Sample:
    """One number."""

    name: str
    value: float
    labels: Mapping[str, str]

    def line(self) -> str:
        shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in self.labels.items())
        return f"{self.name}{{{shown}}} {self.value:.10g}" if shown else f"{self.name} {self.value:.10g}"


def page(samples: Iterable[Sample]) -> str:
    """The samples by metric, each with what it means."""
    found = list(samples)
    lines: list[str] = []
    for name, (kind, about) in HELP.items():
        own = [sample.line() for sample in found if sample.name == name]
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *own] if own else []
    return "\n".join(lines) + "\n"


def samples(state: State, services: Sequence[Service], certificate: Path | None = None) -> Iterator[Sample]:
    """Everything to report now."""
    for service in services:
        yield Sample("thistle_process_up", float(service.ready), {"process": service.name})
        yield Sample("thistle_process_starts_total", service.starts, {"process": service.name})
    yield Sample("thistle_disk_free_bytes", shutil.disk_usage(state.path).free, {})
    if certificate is not None:
        from thistle.deploy.pki import days_left

        with suppress(OSError, ValueError):
            yield Sample("thistle_certificate_days_left", days_left(certificate), {})
    newest = {one.name: one for one in submitted(state)}
    for run in list(newest.values())[-RUNS:]:
        yield from _of_run(run)


def _of_run(run: Submission) -> Iterator[Sample]:
    """From its folder; what is not there yet, or not a number, is left out."""
    name = {"run": run.name}
    yield Sample("thistle_run_going_on", float(run.run.is_held()), name)
    lines = list(read_lines(run.run.metrics))
    if not lines:
        return
    last = lines[-1]
    tested: Mapping[str, Any] = next((line for line in reversed(lines) if line.get("accuracy") is not None), {})
    values: dict[str, Any] = {
        "thistle_run_rounds_total": last.get("round"),
        "thistle_run_last_round_timestamp_seconds": _seconds(last.get("time")),
        "thistle_run_round_seconds": last.get("seconds"),
        "thistle_run_accuracy": tested.get("accuracy"),
        "thistle_run_loss": tested.get("loss"),
        "thistle_run_bytes_up_total": sum(line.get("bytes_up", 0) for line in lines),
    }
    yield from (Sample(key, value, name) for key, value in values.items() if isinstance(value, int | float))
    for site, said in tally(lines).items():
        own = {**name, "site": site}
        for verdict in ("accepted", *EXCLUDED, "failed"):
            yield Sample("thistle_site_replies_total", said[verdict], {**own, "verdict": verdict})
        yield Sample("thistle_site_rounds_left_out_total", said["left_out"], own)
        yield Sample("thistle_site_rounds_silent_total", said["silent"], own)


def _seconds(time: Any) -> float | None:
    """Since 1970."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError):
        return None


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


@contextmanager
def serving(port: int, text: Callable[[], str]) -> Iterator[str]:
    """At /metrics on this port of loopback, for as long as the block lasts; its address. Port 0: nowhere."""
    if not port:
        yield ""
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is http.server's
            body = text().encode() if self.path == "/metrics" else b"see /metrics\n"
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", CONTENT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Prometheus asks every few seconds, which is not worth logging."""

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise UserError(f"--metrics {port}: {error.strerror}: choose another port") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
