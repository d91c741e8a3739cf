"""The lm-evaluation-harness: a model that learns from every context, and the paper's tasks. It needs `lm-eval`.

Importing this package makes the harness know the model `tint`. A task manager with
`include_path=TASKS` knows the tasks.
"""

from pathlib import Path

from tintlab.harness.model import TintLM

TASKS = Path(__file__).parent / "tasks"
"""The directory with the tasks' YAML files."""

__all__ = ["TASKS", "TintLM"]
