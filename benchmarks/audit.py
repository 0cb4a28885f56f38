"""What the audit log costs per round: hashing what goes out and comes in, signing a line, and keeping replies.

python benchmarks/audit.py [--clients 10] [--folder DIR]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.flower_compat.messages import identify
from thistle.protocol.layout import to_record
from thistle.protocol.verdict import Verdict
from thistle.server.recording.audit import Audit
from thistle.server.transport.grid import CohortGrid
from thistle.server.transport.hosts import Hosts
from thistle.server.transport.reply import Reply

ROUNDS = 5
SIZES = {"mlp on digits": 55_000, "1 M parameters": 10**6, "10 M parameters": 10**7}


def measure(size: int, clients: int, keep: bool, place: Path) -> tuple[float, float, int]:
    """Seconds per round, the median, and of those the processor's; bytes of a line."""
    torch.set_num_threads(1)
    experiment = Experiment.of({"run.audit": "on", "run.keep-replies": keep, "task.clients": clients})
    folder = RunFolder(place)
    audit = Audit(experiment, folder, deployed=False)
    grid = CohortGrid(None, Hosts(clients, clients), lambda _: 1, chunk=0, most=1, limit=1.0)  # type: ignore[arg-type]
    audit.listen(grid)
    verdicts = [Verdict(client, "accepted", score=0.1, threshold=0.05, weight=0.1) for client in range(clients)]
    seconds, busy = [], []
    for number in range(1, ROUNDS + 1):
        arrays = to_record({"w": torch.randn(size)})
        sent = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 0.1})})
        messages = [Message(sent, dst_node_id=client, message_type="train") for client in range(clients)]
        metrics = MetricRecord({"num-examples": 100, "loss": 0.5})
        came = [
            Reply(c, "1", {"arrays": to_record({"w": torch.randn(size)}), "metrics": metrics}) for c in range(clients)
        ]
        started, before = time.perf_counter(), time.process_time()
        grid.on_send[0](messages)
        for reply in came:
            grid.on_reply[0](reply)
        audit.round({"round": number}, [verdict.line(number) for verdict in verdicts], arrays)
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - before)
    return median(seconds), median(busy), len((place / "audit.jsonl").read_bytes().splitlines()[-1])


def main() -> None:
    """A table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    identify()
    for name, size in SIZES.items():
        for keep in (False, True):
            with tempfile.TemporaryDirectory(dir=options.folder) as place:
                seconds, busy, line = measure(size, options.clients, keep, Path(place))
            kept = ", replies kept" if keep else ""
            cost = f"{seconds * 1000:.1f} ms per round ({busy * 1000:.1f} of the processor)"
            print(f"{name}, {options.clients} replies{kept}: {cost}, {line} bytes per line", flush=True)


if __name__ == "__main__":
    main()
