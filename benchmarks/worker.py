"""A child process that times one call at a time when asked: so the parent can interleave processes of two venvs.

Needs torch and numpy alone. Protocol: a line of JSON in, {"do": "time" | "memory" | "vector", "name": …}, one out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

Calls = Mapping[str, Callable[[], Any]]


def block(n: int, d: int) -> torch.Tensor:
    """The same n x d block in every process: honest rows around a common step, every fifth one far off."""
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(n, d, generator=generator)
    updates += torch.randn(d, generator=generator)
    updates[::5] *= -3
    return updates


def serve(calls_for: Callable[[torch.Tensor], Calls]) -> None:
    """Answer requests until the input ends. Arguments of the process: n, d, a folder for vectors."""
    n, d, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    torch.set_num_threads(1)
    calls = calls_for(block(n, d))
    print(json.dumps({"names": list(calls)}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        call = calls[request["name"]]
        answer: dict[str, Any] = {}
        if request["do"] == "time":
            started = time.process_time()
            call()
            answer["seconds"] = time.process_time() - started
        elif request["do"] == "memory":
            answer["bytes"] = extra_memory(call)
        else:
            path = folder / f"{os.getpid()}-{len(os.listdir(folder))}.npy"
            np.save(path, np.asarray(call(), dtype=np.float64))
            answer["path"] = str(path)
        print(json.dumps(answer), file=answers, flush=True)


def extra_memory(call: Callable[[], Any]) -> int | None:
    """By how much the resident memory rises while `call` runs. Linux only: the kernel's own high-water mark."""
    call()  # what is loaded once is not counted
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        result = call()
        after = _status("VmHWM")
        del result
    except OSError:
        return None
    return max(0, after - before)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key} in /proc/self/status")
