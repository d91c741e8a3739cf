"""What the YAML files beside this one name: the harness looks for it here."""

from tintformer.integrations.lm_eval.described import DescribedTask, process_results

__all__ = ["DescribedTask", "process_results"]
