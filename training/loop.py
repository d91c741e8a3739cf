# pyright: basic
"""The training loop: a schedule with warm-up and cosine, a log line a step, a checkpoint now and then."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn import functional

from tintformer.errors import DivergenceError
from tintformer.storage.staging import settle
from tintformer.storage.whole_files import whole_file
from training.checkpoint import load_checkpoint, read_state, save_checkpoint
from training.corpus import Windows
from training.optimizers import create_optimizers
from training.settings import Settings

CHECKPOINT = "checkpoint.safetensors"
LOG = "losses.jsonl"


class Trainer:
    """One run: a model, its optimisers, and the folder where it can be killed and continued."""

    def __init__(self, folder: Path, model: Any, windows: Windows, settings: Settings):
        self.folder = folder
        self.model = model.train()
        self.windows = windows
        self.settings = settings
        self.optimizers = create_optimizers(model, settings)
        state = read_state(folder / CHECKPOINT)
        self.step = 0
        if state is not None:
            self.step = state["step"]
            load_checkpoint(folder / CHECKPOINT, model, self.optimizers)
        _forget_later_steps(folder / LOG, self.step)
        settle(folder)  # what a killed run was writing

    def run(self, validate: Callable[[], float | None], validate_every: int, checkpoint_every: int) -> None:
        """Train to the last step of the schedule."""
        last = self.settings.steps
        with _progress() as progress, (self.folder / LOG).open("a") as log:
            task = progress.add_task(self.settings.preset, total=last, completed=self.step, loss="")
            while self.step < last:
                record: dict[str, Any] = {"step": self.step, "loss": self._take_step()}
                self.step += 1
                due = self.step % validate_every == 0 or self.step == last
                if due and (validation := validate()) is not None:
                    record["validation"] = validation
                log.write(json.dumps(record) + "\n")
                log.flush()
                if self.step % checkpoint_every == 0 or self.step == last:
                    self._save()
                progress.update(task, completed=self.step, loss=f"{record['loss']:.3f}")

    def _take_step(self) -> float:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(self.step, self.settings)
        windows, shifts = (torch.from_numpy(array) for array in self.windows.batch(self.step))
        tokens, targets = windows[:, :-1], windows[:, 1:]
        positions = shifts[:, None] + torch.arange(tokens.shape[1])
        logits = self.model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        value = loss.item()
        if not math.isfinite(value):
            raise DivergenceError.at("the loss", self.settings.learning_rate, f" at step {self.step}")
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        return value

    def _save(self) -> None:
        save_checkpoint(self.folder / CHECKPOINT, self.model, self.optimizers, {"step": self.step})


def rate(step: int, settings: Settings) -> float:
    """The learning rate of a step: a line up to the peak, then half a cosine down."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    cosine = (1 + math.cos(math.pi * done)) / 2
    return settings.learning_rate * (settings.final_rate + (1 - settings.final_rate) * cosine)


def _forget_later_steps(log: Path, step: int) -> None:
    """Drop what a killed run logged after its last checkpoint, and the line it was writing."""
    if not log.exists():
        return
    kept = [line for line in log.read_text().splitlines(keepends=True) if _is_before(line, step)]
    with whole_file(log) as temporary:
        temporary.write_text("".join(kept))


def _is_before(line: str, step: int) -> bool:
    try:
        return line.endswith("\n") and json.loads(line)["step"] < step
    except ValueError:
        return False


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
    )
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
