"""TintLM: the model `tint` of the harness, which learns from the context of a request and then says what follows.

The meaning is that of our own experiments without demonstrations: learn from the text and the prompt inside the pass,
then predict the label. Every context has its own update, and nothing of it outlives the request.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import lm_eval.models  # noqa: F401  # pyright: ignore[reportUnusedImport] (the registry fills up once, and only if empty)
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string

from tintformer.errors import InputError
from tintformer.learning.text import find_tokenizer
from tintformer.storage.loading import load
from tintformer.transformers.model import TintForCausalLM
from tintformer.version import __version__
from tintlab.data.models import model_identity
from tintlab.harness.arguments import GenerationOptions, ModelArguments, group_by_options
from tintlab.harness.scoring import Encoding, Ids, Score, Scorer, padded
from tintlab.kinds.icl import CONTEXT


class TintLM(TemplateLM):
    """A model that learns from every context inside the pass."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.arguments = arguments = ModelArguments.of(given)
        auxiliary = load(arguments.pretrained, dtype=arguments.torch_dtype, device=arguments.available_device())
        self.model: Any = TintForCausalLM.from_auxiliary(auxiliary, arguments.rule, arguments.engine)
        self.tokenizer: Any = find_tokenizer(arguments.pretrained)
        self.encoding = Encoding(self.tokenizer)
        self.max_length = arguments.max_length or auxiliary.max_positions or CONTEXT
        positions = auxiliary.max_positions if auxiliary.learned_positions else None
        if positions is not None and self.max_length > positions:
            raise InputError(f"max_length={self.max_length}, but {auxiliary.name} has learned {positions} positions")
        self._device = auxiliary.device

    # How the harness makes one: its own options come along in any case, and what the user says of the model wins.

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> TintLM:
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**(given | arg_dict))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> TintLM:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # Texts.

    @property
    def eot_token_id(self) -> int:
        return self.encoding.end

    @property
    def prefix_token_id(self) -> int:
        return self.encoding.prefix

    @property
    def tokenizer_name(self) -> str:
        return self.arguments.pretrained.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return list(self.encoding.text(string, first=add_special_tokens is not False))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not self.tokenizer.chat_template:
            raise InputError(f"{self.arguments.pretrained} has no chat template; leave --apply_chat_template out")
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    # Requests.

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Score]:
        """All continuations of a context in a task follow the same tokens, and share the update learnt from them."""
        asked: dict[tuple[Any, str], dict[str, None]] = {}
        for request in requests:
            context, continuation = request.args
            asked.setdefault((request.task_name, context), {})[continuation] = None
        encoded: dict[tuple[Any, str, str], tuple[Ids, Ids]] = {}
        for (task, context), continuations in asked.items():
            pairs = self.encoding.pairs(context, list(continuations))
            encoded |= {(task, context, each): pair for each, pair in zip(continuations, pairs, strict=True)}
        tokens = [(request.args, *encoded[request.task_name, *request.args]) for request in requests]
        return self._loglikelihood_tokens(tokens, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(self, requests: list[Any], disable_tqdm: bool = False, **kwargs: Any) -> list[Score]:
        scorer = Scorer(engine=self.model.engine, max_length=self.max_length, batch_size=self.arguments.batch_size)
        pairs = [(tuple(context), tuple(continuation)) for _, context, continuation in requests]
        return scorer.scores(pairs, quiet=disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Windows that overlap by half: a window is learnt from where another has scored it, then the rest is scored.

        The first window of a text has nothing before it, so nothing is learnt there.
        """
        windows = [self._windows(request.args[0]) for request in requests]
        tokens = [(None, *window) for each in windows for window in each]
        scores = iter(self._loglikelihood_tokens(tokens, disable_tqdm=disable_tqdm))
        return [sum(next(scores)[0] for _ in each) for each in windows]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        rolling = get_rolling_token_windows(
            token_list=self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=max(1, self.max_length // 2),
        )
        return [make_disjoint_window(window) for window in rolling]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The context is learnt from, and continued by the updated model until a stop sequence."""
        asked = [request.args for request in requests]
        contexts = [self.tok_encode(context) or [self.prefix_token_id] for context, _ in asked]
        found: dict[int, str] = {}
        for numbers in group_by_options(asked):
            options = GenerationOptions.of(asked[numbers[0]][1])
            numbers = sorted(numbers, key=lambda number: -len(contexts[number]))
            for start in range(0, len(numbers), self.arguments.batch_size):
                group = numbers[start : start + self.arguments.batch_size]
                texts = self._generate([contexts[number] for number in group], options)
                found.update(zip(group, texts, strict=True))
        return [found[number] for number in range(len(asked))]

    def _generate(self, contexts: list[list[int]], options: GenerationOptions) -> list[str]:
        room = self.max_length - options.max_new_tokens
        if room < 1:
            raise InputError(
                f"{options.max_new_tokens} tokens are to be generated, but max_length is {self.max_length}; "
                "give --gen_kwargs max_gen_toks=NUMBER"
            )
        input_ids, attended = padded([tuple(context[-room:]) for context in contexts], left=True)
        stops = {"stop_strings": list(options.until), "tokenizer": self.tokenizer} if options.until else {}
        output = self.model.generate(
            input_ids.to(self.model.device),
            attention_mask=attended.to(self.model.device).long(),
            max_new_tokens=options.max_new_tokens,
            pad_token_id=self.eot_token_id,
            **stops,
            **options.extra,
        )
        new = output[:, input_ids.shape[1] :].tolist()
        return [options.cut(self.tokenizer.decode(ids, skip_special_tokens=True)) for ids in new]

    def get_model_info(self) -> dict[str, Any]:
        """What produced the numbers, for the harness's results file."""
        return {
            "tintformer": __version__,
            "torch": torch.__version__,
            "model_identity": model_identity(self.model.auxiliary, self.tokenizer),
            "learning_rule": asdict(self.arguments.rule),
            "engine": self.arguments.engine,
            "dtype": self.arguments.dtype,
            "max_length": self.max_length,
        }


register_model("tint")(TintLM)  # as a decorator it would hide the type of the class
