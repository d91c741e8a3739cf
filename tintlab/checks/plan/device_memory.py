"""How much memory there is, and how people write it."""

from __future__ import annotations

import math
import re
from pathlib import Path

from tintformer.errors import InputError, brief
from tintformer.storage.configs import total_memory

UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
MEMINFO = Path("/proc/meminfo")


def parse_size(text: str) -> int:
    """Bytes from `24GB`, `80 GiB` or a plain number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = UNITS.get(found[2]) if found and found[2] else 1
    if found is None or unit is None:
        raise InputError(f"{brief(text)} is no amount of memory; write it as 24GB or 80GiB")
    size = float(found[1]) * unit
    if math.isinf(size):
        raise InputError(f"{brief(text)} is more memory than can be counted; write it as 24GB or 80GiB")
    return int(size)


def free_memory(device: str = "cpu") -> int:
    """What can be had now, without taking it from others; all there is where the system does not say."""
    if device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise InputError(f"device={device} is not here; give --memory, such as 24GB, to plan for another machine")
        return torch.cuda.mem_get_info(device)[0]
    lines = MEMINFO.read_text().splitlines() if MEMINFO.exists() else []
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(total_memory(), *free)
