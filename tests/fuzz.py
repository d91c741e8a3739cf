# pyright: basic
"""The standing attack (`make fuzz`): random cases against the engines, and damaged files against what reads files.

    python tests/fuzz.py --minutes 20 --seed 1       go on with the run of this seed, in build/fuzz/1
    python tests/fuzz.py repeat KIND CASE            one case again; its files stay in build/fuzz/repeat

A run that was stopped goes on where it was. The exit code is 1 if there are findings.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Before torch is imported: cases are forked off, and threads do not survive a fork.
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# What somebody has fetched must not decide a case.
os.environ["HF_HOME"] = os.environ["TINTFORMER_CACHE"] = os.path.join(tempfile.gettempdir(), "tintformer-fuzz-cache")


def main() -> int:
    parser = argparse.ArgumentParser(description="The standing attack.")
    parser.add_argument("--minutes", type=float, default=5, help="how long to go on")
    parser.add_argument("--seed", type=int, default=0, help="which cases; every seed has its own")
    parser.add_argument("--cases", type=int, help="cases of each kind in all, in place of --minutes")
    parser.add_argument("--kinds", default="", help="with commas between them; default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "fuzz")
    commands = parser.add_subparsers(dest="command")
    again = commands.add_parser("repeat", help="one case again")
    again.add_argument("kind")
    again.add_argument("case", type=int)
    given = parser.parse_args()
    return attack(given)


def quiet() -> None:
    """One thread, and libraries that do not talk."""
    from fuzzing.runner import require_linux

    require_linux()
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()


def attack(given: argparse.Namespace) -> int:
    from fuzzing.runner import Run, for_minutes, repeat, up_to

    quiet()
    from fuzzing.files import FILES
    from fuzzing.numbers import NUMBERS

    kinds = {kind.name: kind for kind in [*NUMBERS, *FILES]}
    asked = [given.kind] if given.command else given.kinds.split(",") if given.kinds else list(kinds)
    if unknown := [name for name in asked if name not in kinds]:
        sys.exit(f"{', '.join(unknown)} is no kind of case; there are {', '.join(kinds)}")
    if given.command:
        report = repeat(kinds[given.kind], given.case, given.output / "repeat")
        print(report.finding or report.outcome)
        print(f"{report.cpu:.2f} s, {report.memory / 2**20:.0f} MB; its files are in {given.output / 'repeat'}")
        return int(report.finding is not None)
    run = Run(given.output / str(given.seed), given.seed, [kinds[name] for name in asked])
    run.go(up_to(given.cases) if given.cases is not None else for_minutes(given.minutes))
    print(run.table())
    if run.num_findings:
        print(f"\n{run.causes()}\n\nfiles and traces: {run.directory / 'findings'}")
    return int(run.num_findings > 0)


if __name__ == "__main__":
    sys.exit(main())
