"""Runs a graph of `tint export` without torch and without tintformer: numpy and onnxruntime are all that it imports.

    tint export nano-llama --file story.txt -o model.onnx      # writes model.json, the text as ids, beside it
    python examples/run_onnx.py model.onnx model.json

A runtime that has no notion of a gradient trains the model in its forward pass. Without training tokens the same graph
learns nothing, which gives the perplexity before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy
import onnxruntime


def losses(logits: numpy.ndarray, ids: numpy.ndarray, scored: numpy.ndarray) -> numpy.ndarray:
    """The loss of every scored token, in nats, from the logits of the token before it."""
    logits = logits - logits.max(-1, keepdims=True)
    log_probabilities = logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))
    of_targets = numpy.take_along_axis(log_probabilities[:, :-1], ids[:, 1:, None], axis=-1)[..., 0]
    return -of_targets[scored[:, 1:]]


def main(graph: str, text: str) -> None:
    content = json.loads(Path(text).read_text(encoding="utf-8"))
    inputs = {name: numpy.array(content[name]) for name in ("input_ids", "attention_mask", "train_mask")}
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    scored = (inputs["attention_mask"] == 1) & (inputs["train_mask"] == 0)
    nothing = {**inputs, "train_mask": numpy.zeros_like(inputs["train_mask"])}
    for name, feed in (("before", nothing), ("after", inputs)):
        (logits,) = session.run(["logits"], feed)
        print(f"perplexity {name}: {numpy.exp(losses(logits, inputs['input_ids'], scored).mean()):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
