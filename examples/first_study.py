"""A first study: a model learns half an article. What does it write, at which rate, by which of three rules?"""

import sys
from pathlib import Path

import tintformer as tint
import tintlab as lab

model = tint.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
article = Path(__file__).with_name("article.txt")
result = tint.learn(model, article)
print(result, result.generate("The Ferrymen's Clock of Aldermoor", max_new_tokens=30), sep="\n\n", end="\n\n")
study = lab.sweep(model, article, learning_rate=[3e-5, 1e-4, 3e-4, 1e-3], rule=["default", "paper", "full"])
print(study)
study.plot("first_study.png")
