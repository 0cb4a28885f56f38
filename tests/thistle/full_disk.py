"""`full_disk.py FOLDER thistle run …`, in mounts of its own: on a small disk that is full after round 3."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 400.0


def main() -> int:
    folder, command = Path(sys.argv[1]), [sys.executable, "-m", *sys.argv[2:]]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True)
    run = subprocess.Popen(command, cwd=folder)
    metrics, until = folder / "runs" / "small" / "metrics.jsonl", time.monotonic() + PATIENCE
    while run.poll() is None and not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= 3):
        if time.monotonic() > until:
            run.kill()
        time.sleep(0.01)
    filling = folder / "filling"
    with filling.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    code = run.wait(timeout=PATIENCE)
    filling.unlink()
    resumed = subprocess.run([sys.executable, "-m", "thistle", "resume", str(metrics.parent)], check=False)
    audited = subprocess.run([sys.executable, "-m", "thistle", "audit", "verify", str(metrics.parent)], check=False)
    print("codes", code, resumed.returncode, audited.returncode)
    print((metrics.parent / "summary.json").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
