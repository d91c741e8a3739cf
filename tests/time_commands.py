# pyright: basic
"""How long every command takes on a terminal: to the first thing that a user sees, and to its end.

`python tests/time_commands.py [WORD ...]` runs the commands, or those whose names hold one of the words, one after the
other on a pseudo-terminal, each in a process of its own, and prints a table in Markdown. With the sources of another
version in PYTHONPATH it is that version that is timed.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TINT = Path(sys.executable).with_name("tint")
ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
TEXT = "The lamp in the harbour was red, and the boat in the harbour was blue. Nobody in the harbour asked why. "
MODEL = ("nano-llama", "--file", "short.txt")
FEW = ("--tests", "4", "--tuning", "4", "--seeds", "0", "--learning-rate", "1e-5,1e-4")
BLOCKS = ("--length", "64", "--blocks", "4", "--tuning", "4")
DOCUMENTS = ("--documents", "blocks", "--length", "128", "--chunk", "32", "--scored", "4", "--tuning", "2")
COMMANDS = {
    "--help": ("--help",),
    "models": ("models",),
    "fetch": ("fetch", "--list"),
    "params": ("params", "nano-llama"),
    "plan": ("plan", "nano-llama", "--tokens", "256"),
    "inspect": ("inspect", "nano-llama"),
    "run": ("run", *MODEL),
    "adapt": ("adapt", *MODEL, "-o", "update.safetensors"),
    "stream": ("stream", *MODEL, "--learning-rate", "1e-4", "--chunk", "32"),
    "statistics": ("statistics", *MODEL, "--chunk", "32", "-o", "model.statistics"),
    "sweep": ("sweep", *MODEL),
    "rates": ("rates", "nano-llama", "text.txt", "text.txt", "--lengths", "32", "-o", "rates.json"),
    "audit": ("audit", *MODEL, "--chunk", "32"),
    "compare": ("compare", "nano-llama", "sst2", "--data", "tasks/sst2", "--quick"),
    "probe": ("probe", "nano-llama", "--quick"),
    "report": ("report", *MODEL, "-o", "report"),
    "build": ("build", "nano-llama", "--learning-rate", "1e-4", "-o", "simulator"),
    "export": ("export", "nano-llama", "--learning-rate", "1e-4", "--engine", "fast", "-o", "model.onnx"),
    "verify": ("verify", "nano-llama"),
    "demo": ("demo",),
    "bench": ("bench", "--quick"),
    "eval list": ("eval", "list"),
    "eval lm": ("eval", "lm", "nano-llama", "text.txt", *BLOCKS, "--shares", "0.5"),
    "eval icl": ("eval", "icl", "nano-llama", "sst2", "--data", "tasks/sst2", *FEW),
    "eval stream": ("eval", "stream", "nano-llama", "text.txt", *DOCUMENTS, "--methods", "auxiliary,sgd,tint"),
    "eval regression": ("eval", "regression", "--functions", "8", "--tuning", "4"),
    "eval constructions": ("eval", "constructions"),
    "eval table": ("eval", "table"),
    "eval table-lm": ("eval", "table-lm", "--model", "nano-llama", "--data", "text.txt", *BLOCKS),
    "eval table-icl": ("eval", "table-icl", "--model", "nano-llama", "--data", "tasks", "--tasks", "sst2", *FEW),
    "eval table-settings": ("eval", "table-settings", "--model", "nano-llama", "--data", "tasks", *FEW),
    "lm-eval": (
        *("lm-eval", "--model", "tint", "--model_args", "pretrained=nano-llama,learning_rate=1e-4"),
        *("--tasks", "tint_sst2", "--data", "tasks/sst2", "--tests", "4"),
    ),
}


def prepare(folder: Path) -> None:
    """Put what the commands read into a folder."""
    (folder / "short.txt").write_text(TEXT * 12, encoding="utf-8")
    (folder / "text.txt").write_text((TEXT * 4 + "\n\n") * 20, encoding="utf-8")
    (folder / "tasks" / "sst2").mkdir(parents=True)
    for part in ("train", "test"):
        rows = [
            {"text": f"{word} {part} {number}", "label": label}
            for label, word in enumerate(("dull", "bright"))
            for number in range(50)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "tasks" / "sst2" / f"{part}.jsonl").write_text(lines, encoding="utf-8")


def is_visible(written: bytes) -> bool:
    """Whether a terminal shows anything of it."""
    return bool(ESCAPES.sub(b"", written).strip())


def time_command(words: tuple[str, ...], folder: Path) -> tuple[float | None, float, int, bytes]:
    """Seconds to the first visible output and to the end, the exit code, and all that was written."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    start = time.monotonic()
    process = subprocess.Popen(
        [str(TINT), *words], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment
    )
    os.close(theirs)
    first, written = None, b""
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.01)[0]:
            try:
                written += os.read(ours, 65536)
            except OSError:  # nobody writes there any more
                break
            if first is None and is_visible(written):
                first = time.monotonic() - start
    code = process.wait()
    total = time.monotonic() - start
    os.close(ours)
    return first, total, code, written


def main(words: list[str]) -> None:
    chosen = {name: command for name, command in COMMANDS.items() if not words or any(word in name for word in words)}
    threads = os.environ.get("OMP_NUM_THREADS", "as many as cores")
    print(f"{os.cpu_count()} cores, threads: {threads}, load at the start: {os.getloadavg()[0]:.1f}\n")
    print("| command | first output (s) | end (s) |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for name, command in chosen.items():
            first, total, code, written = time_command(command, Path(folder))
            shown = "none" if first is None else f"{first:.2f}"
            print(f"| `tint {name}` | {shown} | {total:.2f} |", flush=True)
            if code:
                print(f"tint {name} ended with {code}: {written[-2000:].decode(errors='replace')}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
