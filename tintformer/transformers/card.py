"""The model card: what a Tint model is made of, how it is used, and what it cannot do."""

from __future__ import annotations

import re

from tintformer.storage.foreign_markup import to_markdown
from tintformer.transformers.config import TintConfig
from tintformer.transformers.files import CARD_MARK

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_CARD = """---
library_name: transformers
pipeline_tag: text-generation
{base}tags:
- tintformer
- test-time-training
---

# {title}

{mark}

{name} behind a learning rule: in every forward pass the model first trains itself on the prompt, every sequence on its
own, and then predicts with the updated weights. Nothing that it learns outlives the pass. The files hold the weights of
the base model, unchanged.

| what | value |
| --- | --- |
| base model | {name} |
| family | {family} |
| engine | {engine} |
| learns from | {part} |
| dtype | {dtype} |

## Learning rule

| knob | value |
| --- | --- |
{rule}

## How to use it

```python
import tintformer  # makes the auto classes of transformers know the model
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH OF THE BASE MODEL")
inputs = tokenizer("A text to learn from and to continue", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))
```

`train_mask` (of `forward` and `generate`) chooses the tokens that are learnt from.

## Limits

- The best learning rate differs between models and texts, and twice the best one can diverge.
- A prompt of one token teaches nothing. A prompt that misleads, misleads more once it has been learnt from.
- All that holds for the base model holds here: its licence, its biases, the length of its context.
- It is no model to be fine-tuned: gradients do not pass through the pass. Train the base model instead.
"""


def model_card(config: TintConfig) -> str:
    """The card of a model with this configuration."""
    name = config.base_model or config.auxiliary.model_type
    whole = config.train_fraction == 1
    return _CARD.format(
        base=f"base_model: {name}\n" if _HUB_ID.fullmatch(name) else "",
        title=f"{to_markdown(name)} that learns inside its forward pass",
        mark=CARD_MARK,
        name=to_markdown(name),
        family=config.auxiliary.model_type,
        engine=config.engine,
        part="the whole prompt" if whole else f"the first {config.train_fraction:.0%} of the prompt",
        dtype=str(config.dtype).removeprefix("torch."),
        rule="\n".join(f"| {knob} | {to_markdown(str(value))} |" for knob, value in config.learning_rule.items()),
    )
