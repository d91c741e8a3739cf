"""What the YAML files beside this one name: the harness looks for it here."""

from tintlab.harness.classification_task import ClassificationTask, process_results

__all__ = ["ClassificationTask", "process_results"]
