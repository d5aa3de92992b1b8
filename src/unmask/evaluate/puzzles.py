"""reasoning-gym's generated puzzles as lm-eval tasks: ten easy generators in turn, or one by name.

A prompt holds three solved puzzles of its kind and the one to solve, as a text to go on with: a form that a model of
135M parameters manages. Items come from seeds far from the small ones that training data is made with, no two have the
same question, and none is among the examples. The score is the generator's own `score_answer`.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

from unmask.errors import ConfigError, MissingExtraError

HELD_OUT = 900_000_000
SIZE = 1000
SHOTS = 3
EXAMPLES = HELD_OUT - 1000
SUPPLY = 100_000
"""Items that a generator is set up for; each depends on the seed and its number alone."""
TRIES = 20
"""Items are looked for among this many times as many."""

# Generators with settings that make them easy.
MIXTURE: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "basic_arithmetic": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "letter_counting": {"min_words": 3, "max_words": 4},
    "word_sorting": {"min_words": 2, "max_words": 2},
    "syllogism": {},
    "ransom_note": {
        **{"min_note_length": 3, "max_note_length": 4},
        **{"min_magazine_length": 5, "max_magazine_length": 8},
    },
    "gcd": {"max_value": 60},
    "isomorphic_strings": {"min_string_length": 2, "max_string_length": 4},
    "needle_haystack": {"min_num_statements": 3, "max_num_statements": 5},
}


def extract(text: str) -> str:
    """The answer in a text: its first line that is not empty, without a leading "Answer:" and marks around it."""
    lines = [line for line in text.splitlines() if line.strip()]
    line = re.sub(r"(?i)^\W*answer\s*:", "", lines[0]) if lines else ""
    return line.strip("*`$\"' \t").removesuffix(".").strip("*`$\"' \t")


@functools.cache
def generator(name: str, seed: int) -> Any:
    """The data set of one generator; ConfigError for a name that reasoning-gym does not have."""
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise MissingExtraError("reasoning-gym", "eval") from None
    if name not in DATASETS:
        raise ConfigError(f"reasoning-gym has no generator '{name}'; there are, among others, {', '.join(MIXTURE)}")
    return create_dataset(name, seed=seed, size=SUPPLY, **MIXTURE.get(name, {}))


def asked(item: dict[str, Any]) -> str:
    return f"Question: {item['question'].strip()}\nAnswer:"


def _items(name: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """At most `count` rows of one generator."""
    data = generator(name, HELD_OUT + seed)
    shots = [generator(name, EXAMPLES)[index] for index in range(SHOTS)]
    before = "".join(f"{asked(shot)} {shot['answer']}\n\n" for shot in shots)
    seen, made = {shot["question"] for shot in shots}, 0
    for index in range(min(count * TRIES, SUPPLY)):
        item = data[index]
        if item["question"] in seen:
            continue
        if made == count:
            return
        seen.add(item["question"])
        made += 1
        where = {"generator": name, "seed": HELD_OUT + seed, "index": index}
        yield {"prompt": before + asked(item), "target": str(item["answer"]), **where}


def rows(names: list[str], seed: int, size: int) -> list[dict[str, Any]]:
    """`size` items, the generators in turn, fewer where a generator has not so many different ones."""
    streams = [_items(name, seed, -(-size // len(names))) for name in names]
    made: list[dict[str, Any]] = []
    while streams and len(made) < size:
        for stream in list(streams):
            row = next(stream, None)
            if row is None:
                streams.remove(stream)
            else:
                made.append(row)
    return made[:size]


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """correct: 1 for the generator's full score, else 0. score: the generator's score, which may be partial."""
    data = generator(doc["generator"], doc["seed"])
    try:
        value = float(data.score_answer(extract(results[0]), data[doc["index"]]))
    except Exception:  # some generators stumble over what is no answer at all
        value = 0.0
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
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 64},
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    return settings, made
