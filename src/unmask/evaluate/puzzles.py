"""reasoning-gym's generated puzzles as lm-eval tasks: ten easy generators in turn, or one by name.

Every item comes from a seed far from the small ones that training data is made with. The score is the generator's own
`score_answer`, on the answer that `extract` finds; only a full score counts as correct.
"""

import functools
import re
from typing import Any

from unmask.errors import ConfigError, MissingExtraError

HELD_OUT = 900_000_000
SIZE = 1000
ASK = "\nThink briefly if you must, and end with one line of the form: Answer: <your answer>"

# Generators with settings that make them easy enough for a model of 135M parameters.
MIXTURE: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "basic_arithmetic": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "leg_counting": {"min_animals": 1, "max_animals": 2, "max_instances": 3},
    "letter_counting": {"min_words": 3, "max_words": 5},
    "spell_backward": {"min_word_len": 3, "max_word_len": 4},
    "number_sorting": {"min_numbers": 3, "max_numbers": 3, "max_decimals": 0},
    "syllogism": {},
    "family_relationships": {},
    "gcd": {"max_value": 30},
}


def extract(text: str) -> str:
    """The answer in a text: what follows the last "answer:" or "answer is" on its line, else the last line.

    Bold marks, backquotes, dollar signs, quotation marks and a final stop around it are taken off.
    """
    found = re.findall(r"(?i)answer(?:\s+is)?\s*:?[\s*]*([^\n]+)", text)
    lines = [line for line in text.splitlines() if line.strip()]
    answer = found[-1] if found else lines[-1] if lines else ""
    boxed = re.search(r"\\boxed\{([^{}]*)\}", answer)
    answer = boxed[1] if boxed else answer
    return answer.strip().strip("*`$\"' ").removesuffix(".").strip("*`$\"' ")


@functools.cache
def generator(name: str, seed: int, size: int) -> Any:
    """The data set of one generator; ConfigError for a name that reasoning-gym does not have."""
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise MissingExtraError("reasoning-gym", "evaluate") from None
    if name not in DATASETS:
        raise ConfigError(f"reasoning-gym has no generator '{name}'; there are, among others, {', '.join(MIXTURE)}")
    return create_dataset(name, seed=seed, size=size, **MIXTURE.get(name, {}))


def rows(names: list[str], seed: int, size: int) -> list[dict[str, Any]]:
    """`size` items, the generators in turn. seed: the run's; it is moved to where no training data comes from."""
    each = -(-size // len(names))
    made = []
    for number in range(size):
        name, index = names[number % len(names)], number // len(names)
        item = generator(name, HELD_OUT + seed, each)[index]
        made.append(
            {
                "prompt": item["question"].strip() + ASK,
                "target": str(item["answer"]),
                "generator": name,
                "seed": HELD_OUT + seed,
                "size": each,
                "index": index,
            }
        )
    return made


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """correct: 1 for the generator's full score, else 0. score: the generator's score, which may be partial."""
    data = generator(doc["generator"], doc["seed"], doc["size"])
    value = float(data.score_answer(extract(results[0]), data[doc["index"]]))
    return {"correct": float(value >= 1), "score": value}


def config(name: str, seed: int, limit: int | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An lm-eval task's configuration and its rows, for `reasoning-gym` or `reasoning-gym:GENERATOR`."""
    only = name.partition(":")[2]
    made = rows([only] if only else list(MIXTURE), seed, limit or SIZE)
    metrics = [{"metric": each, "aggregation": "mean", "higher_is_better": True} for each in ("correct", "score")]
    settings = {
        "task": name,
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{target}}",
        "process_results": score,
        "metric_list": metrics,
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": 256},
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    return settings, made
