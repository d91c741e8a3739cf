"""What the YAML files beside this one name: the harness looks for it here."""

from tintformer.harness.described import DescribedTask, process_results

__all__ = ["DescribedTask", "process_results"]
