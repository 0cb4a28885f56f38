"""Memory that was freed is used again, not asked for anew."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from thistle.tasks.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        models = [torch.ones(10_000_000) for _ in range(3)]  # 40 MB each: above what glibc ever keeps by itself
        del models
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
for _ in range(4):
    faults()  # until the heap has its size
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other ways")
def test_large_blocks_are_kept():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 10
