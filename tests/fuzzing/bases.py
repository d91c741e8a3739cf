# pyright: basic
"""The undamaged files that need more than a call to be made: a GGUF model, data with their descriptions, results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy
from tiny import TEXT

EVALUATION = "lm-fuzz"
"""The name of the run whose results are damaged."""


def save_gguf(place: Path, *, seed: int = 0, tokens: Sequence[str] = ()) -> None:
    """A tiny LLaMA in full precision, with the settings that a reader needs and no others, or with a tokenizer too."""
    from gguf import GGUFWriter

    place.mkdir(exist_ok=True)
    width, vocabulary, inner, heads = 8, len(tokens) or 29, 12, 2
    writer = GGUFWriter(place / "model.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_rope_freq_base(100.0)
    writer.add_vocab_size(vocabulary)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(list(tokens))
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
    shapes = {
        "token_embd": (vocabulary, width),
        "output": (vocabulary, width),
        "output_norm": (width,),
        "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,),
        "blk.0.attn_q": (width, width),
        "blk.0.attn_k": (width, width),
        "blk.0.attn_v": (width, width),
        "blk.0.attn_output": (width, width),
        "blk.0.ffn_gate": (inner, width),
        "blk.0.ffn_up": (inner, width),
        "blk.0.ffn_down": (width, inner),
    }
    random = numpy.random.default_rng(seed)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (0.3 * random.standard_normal(shape)).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def save_task(place: Path) -> None:
    """A description of a task with two prompts, and its examples."""
    (place / "data").mkdir(parents=True)
    (place / "task.yaml").write_text(
        "kind: classification\ntitle: Films\nlabels: [bad, good]\nprompt: 'Review: {text}\\nSentiment:'\n"
        "words: [terrible, great]\nseparator: \"\\n\\n\"\nvariants:\n  short:\n    prompt: '{text} It was'\n"
        "path: data\ntrain: train\ntest: test\ntext: text\nlabel: label\nlimit: 100\n"
    )
    for name in ("train", "test"):
        rows = [{"text": f"A {name} film, number {n}.", "label": n % 2} for n in range(8)]
        (place / "data" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def save_texts(place: Path) -> None:
    """A description of texts, and files of every kind that texts come in."""
    (place / "data").mkdir(parents=True)
    (place / "text.yaml").write_text("kind: text\ntitle: Harbour\npath: data\ncolumn: text\ndocuments: lines\n")
    sentences = TEXT.split(". ")
    (place / "data" / "a.txt").write_text("\n".join(sentences))
    (place / "data" / "b.jsonl").write_text("".join(f"{json.dumps({'text': each})}\n" for each in sentences))
    (place / "data" / "c.csv").write_text(
        "text,number\n" + "".join(f'"{each}",{n}\n' for n, each in enumerate(sentences))
    )
    (place / "data" / "d.tsv").write_text(
        "text\tnumber\n" + "".join(f"{each}\t{n}\n" for n, each in enumerate(sentences))
    )


def save_evaluation(place: Path) -> None:
    """A finished run with its records and tables."""
    from tintformer.bundled import read_text
    from tintlab.kinds.lm import LanguageModelling
    from tintlab.kinds.runs import Run, save_results
    from tintlab.study.runner import Runner
    from tintlab.study.store import RecordStore
    from tintlab.study.tuning import run_experiment

    place.mkdir()
    text = place / "text.txt"
    text.write_text(read_text("visit"))
    experiment = LanguageModelling(
        model="nano-llama", data=str(text), methods=("auxiliary", "tint"), shares=(0.5,), length=32, blocks=2, tuning=1,
        rates=(1e-4,),
    )  # fmt: skip
    run = Run(name=EVALUATION, kind="lm", experiments=(experiment,))
    run.save(place)
    with Runner(RecordStore(place / "records")) as runner:
        save_results(run, [run_experiment(experiment, runner)], place)
