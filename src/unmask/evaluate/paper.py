"""What Fast-dLLM v2 (arXiv 2509.26328) prints, to stand beside our own numbers: other models, on an A100.

Scores in percent. Figure 1a is read off the picture, all else is printed as a number. Table 2 compares ways of
training, which is what `compare` does with two reports.
"""

MARK = "(paper)"
TABLE1_TASKS = ("HumanEval", "HumanEval+", "MBPP", "MBPP+", "GSM8K", "MATH", "IFEval", "MMLU", "GPQA")
TABLE1: dict[str, tuple[float, ...]] = {
    "Qwen2.5-1.5B": (42.1, 37.2, 48.1, 41.3, 57.0, 46.8, 41.2, 54.6, 30.6),
    "Qwen2.5-1.5B-Nemo-FT": (37.2, 33.5, 53.4, 44.4, 58.5, 43.5, 39.4, 58.1, 31.0),
    "Fast-dLLM v2 1.5B": (43.9, 40.2, 50.0, 41.3, 62.0, 38.1, 47.0, 55.1, 27.7),
    "Qwen2.5-7B": (51.2, 47.6, 57.7, 49.5, 71.4, 73.3, 70.8, 68.7, 33.5),
    "Qwen2.5-7B-Nemo-FT": (52.4, 48.2, 57.1, 50.0, 84.1, 72.0, 69.5, 68.6, 34.2),
    "Fast-dLLM v2 7B": (63.4, 58.5, 63.0, 52.3, 83.7, 61.6, 61.4, 66.6, 31.9),
}
FIGURE1: dict[str, tuple[float, float]] = {
    "LLaDA 8B": (7, 79.3),
    "Dream 7B": (9, 75.0),
    "LLaMA-3-8B": (37, 77.9),
    "Qwen2.5-7B-Nemo-FT": (40, 84.1),
    "Fast-dLLM-Dream": (55, 74.8),
    "Fast-dLLM-LLaDA": (78.5, 78.5),
    "Fast-dLLM v2 7B": (101.7, 83.7),
}
"""Tokens per second (about) and score on GSM8K. The picture labels its 84.1 Qwen2.5-7B-Instruct; it is Table 1's
value of the plain fine-tune."""

_SIZES = (2, 4, 8, 16, 32)


def _by_size(*scores: float) -> dict[float, float]:
    return dict(zip(_SIZES, scores, strict=True))


SWEEPS: dict[str, dict[str, dict[float, float]]] = {
    "sub_block_size": {
        "GSM8K, score %, 1.5B": _by_size(62.8, 61.8, 62.0, 61.3, 60.2),
        "HumanEval, score %, 1.5B": _by_size(42.7, 43.3, 43.9, 39.6, 38.4),
        "HumanEval+, score %, 1.5B": _by_size(39.6, 40.2, 40.2, 36.0, 34.8),
    },
    "block_size": {
        "GSM8K, score %, 1.5B": _by_size(53.2, 56.8, 58.5, 59.7, 60.2),
        "HumanEval, score %, 1.5B": _by_size(37.8, 43.3, 43.3, 38.4, 38.4),
        "HumanEval+, score %, 1.5B": _by_size(34.1, 39.0, 39.6, 34.1, 34.8),
    },
    "threshold": {"GSM8K, tokens/s, 7B, A100": {0.9: 101.7, 1.0: 39.1}},
    "batch_size": {
        "GSM8K, tokens/s, 7B, A100": {1: 102.5, 4: 217.5},
        "GSM8K, tokens/s, Qwen2.5-7B in mode ar, A100": {1: 39.5, 4: 113.2},
    },
}
"""By the setting that is swept. Its Table 4 (block sizes) has no sub-blocks; trained with 32."""

_NAMES = {
    "humaneval_plus": "HumanEval+",
    "humanevalplus": "HumanEval+",
    "humaneval": "HumanEval",
    "mbpp_plus": "MBPP+",
    "mbppplus": "MBPP+",
    "mbpp": "MBPP",
    "gsm8k": "GSM8K",
    "minerva_math": "MATH",
    "math": "MATH",
    "ifeval": "IFEval",
    "mmlu": "MMLU",
    "gpqa": "GPQA",
}


def column(task: str) -> str | None:
    """The column of Table 1 that a task's name belongs to; None where it has none. Prompts and shots may differ."""
    name = task.lower().replace("+", "_plus")
    return next((shown for start, shown in _NAMES.items() if name == start or name.startswith(start + "_")), None)
