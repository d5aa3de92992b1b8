"""Outcomes as an evaluation might yield them, made from a seed: no model is run."""

import random
from collections.abc import Mapping, Sequence

from unmask.evaluate.outcomes import Contender, Item, Outcome

WORDS = "the sum of both is a number so we add and then take half which gives us what was asked for".split()
SIZES = {"gsm8k": 150, "humaneval": 80, "ifeval": 60, "mmlu": 120}
BASE = {"gsm8k": 0.55, "humaneval": 0.35, "ifeval": 0.5, "mmlu": 0.45}


def contender(mode: str, role: str = "model", **swept: object) -> Contender:
    """A contender whose name tells its role, mode and swept settings."""
    name = "-".join([role, mode, *(f"{key}={value}" for key, value in swept.items())])
    decoding = {key: value for key, value in swept.items() if key != "batch_size"}
    size = int(swept.get("batch_size", 8))
    return Contender(name, role, mode, role=role, decoding=decoding, batch_size=size, swept=swept)


def scored(who: Contender, scores: Sequence[float], task: str = "gsm8k", *, tpf: float = 1.0, rate: float = 50.0):
    """An outcome with these scores: answers of 20 tokens, `tpf` tokens a forward, `rate` tokens a second."""
    items = [
        Item(
            n,
            f"question {n}",
            f"answer {score}",
            f"{n}",
            score,
            {"score": score},
            20,
            round(20 / tpf),
            20 / rate,
            "stop",
        )
        for n, score in enumerate(scores)
    ]
    return Outcome(who, task, "generation", "exact_match", items, 20 * len(scores) / rate)


def outcome(who: Contender, task: str, loss: float, tpf: float, rate: float, seed: int = 0) -> Outcome:
    """Scores that follow mode ar's but for a share `loss` of the items, which turn wrong, and half as many that turn
    right; texts that differ in a few words."""
    kind = "likelihood" if task == "mmlu" else "generation"
    items = []
    for number in range(SIZES[task]):
        same = random.Random(f"{seed} {task} {number}")
        own = random.Random(f"{seed} {task} {number} {who.name}")
        level = BASE[task] - (0.05 if who.role == "base" else 0.0)
        right = same.random() < level
        if loss and own.random() < (loss if right else loss / 2):
            right = not right
        words = [same.choice(WORDS) for _ in range(same.randint(12, 60))]
        if loss:
            words = [own.choice(WORDS) if own.random() < 3 * loss else word for word in words]
        tokens = len(words) if kind == "generation" else 0
        score = float(right)
        if task == "ifeval":
            score = same.choice([0.25, 0.5, 1.0]) if right else 0.0
        answer = " ".join(words) + f"\nSo the answer is <b>{number if right else number + 1}</b>."
        reason = "" if not tokens else "length" if own.random() < 0.08 else "stop"
        items.append(
            Item(
                number,
                f"Question {number} of {task}: what is {number} & 1 < 2?",
                answer if tokens else "B",
                str(number),
                score,
                {"exact_match": score},
                tokens,
                -(-tokens // round(tpf)) if tokens else 0,
                tokens / rate * own.uniform(0.8, 1.6),
                reason,
                own.random() * 0.1 if tokens else 0.0,
                0.1 if kind == "likelihood" and who.mode == "threshold" else None,
            )
        )
    tokens = sum(item.tokens for item in items)
    return Outcome(who, task, kind, "acc" if kind == "likelihood" else "exact_match", items, tokens / rate)


def everything(tasks: Sequence[str] = ("gsm8k", "humaneval", "ifeval", "mmlu"), seed: int = 0) -> list[Outcome]:
    """Base, plain fine-tune and the model in three modes on all tasks, and every sweep on gsm8k."""
    main = [
        (contender("ar", "base"), (0.0, 1, 50)),
        (contender("ar", "plain"), (0.05, 1, 50)),
        (contender("ar"), (0.0, 1, 48)),
        (contender("threshold"), (0.03, 2, 84)),
        (contender("verified"), (0.0, 2, 66)),
    ]
    made = [outcome(who, task, *how, seed=seed) for who, how in main for task in tasks]
    return made + [outcome(who, "gsm8k", *how, seed=seed) for who, how in sweeps()]


def sweeps() -> list[tuple[Contender, tuple[float, float, float]]]:
    """Contenders with (loss, tokens per forward, tokens per second)."""
    found = []
    for threshold, how in {0.5: (0.2, 5, 150), 0.7: (0.1, 4, 125), 0.8: (0.05, 3, 100), 0.9: (0.03, 2, 84)}.items():
        found.append((contender("threshold", threshold=threshold), how))
    found.append((contender("threshold", threshold=1.0), (0.01, 1, 45)))
    for size, how in {2: (0.02, 1, 55), 4: (0.02, 2, 70), 8: (0.03, 2, 84), 16: (0.06, 3, 95)}.items():
        found.append((contender("threshold", sub_block_size=size), how))
    for size, how in {2: (0.2, 1, 40), 8: (0.1, 2, 60), 16: (0.06, 2, 75), 32: (0.04, 3, 90)}.items():
        found.append((contender("threshold", block_size=size), how))
    for batch, (ar, threshold) in {1: (20, 44), 4: (40, 70), 16: (90, 110)}.items():
        found.append((contender("ar", batch_size=batch), (0.0, 1, ar)))
        found.append((contender("threshold", batch_size=batch), (0.03, 2, threshold)))
    for size in (4, 8, 16):
        for batch in (1, 32):
            for cache in (False, True):
                how = (
                    0.02 + size / 400,
                    2 + size // 8,
                    30 * (1 + batch / 10) * (1 + size / 40) * (1.1 if cache else 1),
                )
                swept = {"sub_block_size": size, "batch_size": batch, "sub_block_cache": cache}
                found.append((contender("threshold", **swept), how))
    for length, (ar, threshold) in {20: (50, 40), 128: (48, 70), 512: (46, 84)}.items():
        found.append((contender("ar", max_new_tokens=length), (0.0, 1, ar)))
        found.append((contender("threshold", max_new_tokens=length), (0.03, 2, threshold)))
    return found


SKIPPED: Mapping[str, str] = {"mbpp_plus": "its tests are fetched from the network, and there is none"}
