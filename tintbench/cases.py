"""What `tint bench` times: its settings, the models, and the cases, checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tintformer.errors import LoadError, TintError
from tintformer.storage.loading import load

DTYPES = ("float32", "bfloat16", "float64")


class BenchError(TintError):
    """A benchmark that asks for something unknown."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of the benchmark; every record carries what matters of it."""

    models: tuple[str, ...] = ("gpt2",)
    """Shapes with random weights by name, or any model that `tintformer.load` takes."""
    cases: tuple[str, ...] = ("8x64", "4x256", "2x1024", "few_shot")
    methods: tuple[str, ...] = ()
    """Which methods run; none named: those of each case that suit the dtype."""
    repetitions: int = 5
    """Timed runs of each method. Few and one disturbance decides the median; many only cost time."""
    threads: int = 2
    engine: str = "fast"
    """The engine that runs as the method `fast`."""
    dtype: str = "float32"
    device: str = "cpu"
    """One device; memory is measured on the CPU alone."""
    forms: bool = False
    """Also time the engine with every update in the dual form, and with every update materialised."""
    memory: bool = True
    """Also measure peak memory, each method in a process of its own."""
    learning_rate: float = 1e-5
    """Time does not depend on it; random weights stay finite with any small one."""
    seed: int = 0

    def __post_init__(self) -> None:
        from tintbench.timed_methods import METHODS
        from tintformer.learning.engine_registry import ENGINES
        from tintformer.storage.loading import check_device

        _require_known("case", self.cases, CASES)
        _require_known("method", self.methods, METHODS)
        _require_known("engine", (self.engine,), ENGINES)
        _require_known("dtype", (self.dtype,), DTYPES)
        check_device(self.device)
        if self.device == "auto" or (self.memory and self.device != "cpu"):
            raise BenchError(f"device={self.device}: times are taken on one device, and memory on the cpu alone")
        for name in ("repetitions", "threads"):
            if getattr(self, name) < 1:
                raise BenchError(f"{name}={getattr(self, name)} must be at least 1")


def _require_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise BenchError(f"{kind} {name!r} is unknown; choose from {', '.join(known)}")


# The models.

SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2"},
    "opt-125m": {"model_type": "opt"},
    "smollm2-135m": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "rms_norm_eps": 1e-5,
    },
    "tiny": {
        **{"model_type": "gpt2", "vocab_size": 64, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2},
        **{"bos_token_id": None, "eos_token_id": None},
    },
}
"""Configurations by name; the defaults of transformers are GPT-2 small and OPT-125M.

Weights are random: time does not depend on their values.
"""


def make_model(name: str, dtype: torch.dtype, *, seed: int = 0) -> Any:
    """A Hugging Face model in evaluation mode with fused attention, as people run it."""
    if name not in SHAPES:
        return _load(name, dtype)
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(**SHAPES[name])
        model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.to(dtype).eval()


def check_models(names: tuple[str, ...]) -> None:
    """Load what is not a shape once, so that a wrong name fails before hours of measuring and not after them."""
    for name in names:
        if name not in SHAPES:
            _load(name, torch.float32)


def _load(name: str, dtype: torch.dtype) -> Any:
    try:
        return load(name, dtype=dtype).model
    except LoadError as error:
        raise BenchError(f"model {name!r} is no shape known here ({', '.join(SHAPES)}) and: {error}") from error


# The cases.


@dataclass(frozen=True, kw_only=True)
class SequenceCase:
    """A batch whose sequences learn from their first tokens, each on its own, and predict the rest."""

    batch: int
    tokens: int
    num_train: int
    methods: tuple[str, ...] | None = None
    """The only methods that take part; None: all."""
    model: str | None = None
    """The only model that the case is meant for; None: every model of the run."""
    max_repetitions: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.batch * self.tokens

    def describe(self) -> str:
        return f"{self.batch} x {self.tokens} tokens, {self.num_train / self.tokens:.0%} trained"


@dataclass(frozen=True, kw_only=True)
class FewShotCase:
    """One adaptation to training examples, then many test inputs."""

    num_examples: int
    num_inputs: int
    tokens: int
    score_batch: int
    """Test inputs that are scored in one call."""
    num_repeated: int = 2
    """Test inputs for which the training is really repeated; the time is scaled to all of them."""
    methods: tuple[str, ...] | None = None
    model: str | None = None
    max_repetitions: int | None = None

    @property
    def num_tokens(self) -> int:
        return (self.num_examples + self.num_inputs) * self.tokens

    def describe(self) -> str:
        return f"{self.num_examples} examples, then {self.num_inputs} inputs, {self.tokens} tokens each"


@dataclass(frozen=True, kw_only=True)
class StreamCase:
    """Documents that are read chunk by chunk: each chunk is scored, and then learnt from."""

    documents: int
    tokens: int
    """Of each document."""
    chunk: int
    window: int | None = None
    methods: tuple[str, ...] | None = None
    model: str | None = None
    max_repetitions: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.documents * self.tokens

    def describe(self) -> str:
        return f"{self.documents} documents of {self.tokens} tokens, read in chunks of {self.chunk}"


Case = SequenceCase | FewShotCase | StreamCase

CASES: dict[str, Case] = {
    "8x64": SequenceCase(batch=8, tokens=64, num_train=48),
    "4x256": SequenceCase(batch=4, tokens=256, num_train=128),
    "2x1024": SequenceCase(batch=2, tokens=1024, num_train=512),
    "few_shot": FewShotCase(num_examples=32, num_inputs=200, tokens=48, score_batch=25),
    # Whether it fits in memory is the question, so once is enough.
    "long": SequenceCase(
        batch=1, tokens=4096, num_train=2048, methods=("fast",), model="smollm2-135m", max_repetitions=1
    ),
    "simulator": SequenceCase(
        batch=1,
        tokens=256,
        num_train=128,
        methods=("forward", "explicit_rule", "explicit_block", "fast", "simulator", "simulator_paper"),
    ),
    "network": SequenceCase(batch=1, tokens=64, num_train=32, methods=("forward", "explicit_block", "fast", "network")),
    "stream": StreamCase(documents=4, tokens=512, chunk=128),
    "stream_documents": StreamCase(
        documents=32, tokens=256, chunk=64, methods=("forward", "explicit_rule", "explicit_block", "fast")
    ),
    "tiny": SequenceCase(batch=2, tokens=16, num_train=8),
    "tiny_few_shot": FewShotCase(num_examples=3, num_inputs=4, tokens=8, score_batch=2),
    "tiny_stream": StreamCase(documents=2, tokens=16, chunk=5),
}
"""Cases by name; the tiny ones are for trying the command out."""


def random_tokens(shape: tuple[int, int], vocabulary_size: int, *, seed: int) -> Tensor:
    """Token ids that depend on nothing but the seed."""
    return torch.randint(vocabulary_size, shape, generator=torch.Generator().manual_seed(seed))
