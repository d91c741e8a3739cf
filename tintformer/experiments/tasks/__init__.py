"""Classification tasks: described by small YAML files, and the examples that an experiment takes from them."""

from tintformer.experiments.described import shipped
from tintformer.experiments.tasks.choose import demonstrations, test_examples, tuning_examples
from tintformer.experiments.tasks.load import load_task
from tintformer.experiments.tasks.task import Example, Prompt, Task

__all__ = [
    "Example",
    "Prompt",
    "Task",
    "demonstrations",
    "load_task",
    "shipped",
    "test_examples",
    "tuning_examples",
]
