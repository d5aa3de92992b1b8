"""A stand-in for the metric `code_eval`, which lm-eval's code tasks load from the hub and which executes what a model
wrote without any isolation. This one executes it in the sandbox; prompts, names and numbers stay the community's.
"""

import contextlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from unmask.evaluate.sandbox import Verdict, run_many

SECONDS = 10.0
"""CPU time of a program. `code_eval` gives three seconds on the clock, which a busy machine uses up."""


class CodeEval:
    """`code_eval` of Hugging Face's `evaluate`, the same interface and the same estimate, executed in the sandbox.

    Of a task that was adopted, all programs run together as soon as its answers are there; `compute` looks them up.

    verdicts: every program's, in order. workers: programs at a time. allow_weaker: as `sandbox.run` takes it.
    """

    def __init__(self, workers: int | None = None, allow_weaker: bool = False) -> None:
        self.workers, self.allow_weaker = workers, allow_weaker
        self.verdicts: list[Verdict] = []
        self._gathered: list[str] | None = None
        self._known: dict[str, Verdict] = {}

    def compute(
        self,
        *,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        **unused: Any,
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """({"pass@k": share}, results per task). references: the tests of each task; predictions: its candidates.

        A program is a candidate, a line break and the tests. num_workers and timeout are taken and not used.
        """
        programs = [
            f"{candidate}\n{tests}"
            for tests, candidates in zip(references, predictions, strict=True)
            for candidate in candidates
        ]
        if self._gathered is not None:
            self._gathered += programs
            return {f"pass@{size}": 0.0 for size in k}, {}
        self._run(program for program in programs if program not in self._known)
        verdicts = [self._known[program] for program in programs]
        self.verdicts += verdicts
        results: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        each = iter(verdicts)
        for task, candidates in enumerate(predictions):
            results[task] = [(number, _result(task, number, next(each))) for number in range(len(candidates))]
        counts = [(len(rows), sum(row["passed"] for _, row in rows)) for rows in results.values()]
        shares = {
            f"pass@{size}": sum(pass_at(size, total, correct) for total, correct in counts) / len(counts)
            for size in k
            if all(total >= size for total, _ in counts)
        }
        return shares, results

    def ahead(self, task: Any, instances: Sequence[Any]) -> None:
        """Run all programs of a task's filtered answers together. What is known of others is forgotten."""
        self._known, self._gathered = {}, []
        try:
            for instance in instances:
                for answer in instance.filtered_resps.values():
                    task.process_results(instance.doc, [answer])
            programs = self._gathered
        finally:
            self._gathered = None
        self._run(programs)

    def _run(self, programs: Iterable[str]) -> None:
        asked = list(dict.fromkeys(programs))
        verdicts = run_many(asked, self.workers, seconds=SECONDS, allow_weaker=self.allow_weaker) if asked else []
        self._known |= dict(zip(asked, verdicts, strict=True))


def pass_at(k: int, total: int, correct: int) -> float:
    """The unbiased estimate that one of k answers is right, from `total` answers (arXiv 2107.03374)."""
    return 1.0 - math.comb(total - correct, k) / math.comb(total, k)


def _result(task: int, number: int, verdict: Verdict) -> dict[str, Any]:
    said = "passed" if verdict.passed else "timed out" if verdict.timed_out else f"failed: {verdict.reason}"
    return {"task_id": task, "passed": verdict.passed, "result": said, "completion_id": number}


@contextlib.contextmanager
def in_place_of_code_eval(metric: CodeEval) -> Iterator[None]:
    """While this lasts, `evaluate.load("code_eval")` gives `metric`; every other metric is loaded as before."""
    module = importlib.import_module("evaluate") if importlib.util.find_spec("evaluate") else ModuleType("evaluate")
    before, known = getattr(module, "load", None), "evaluate" in sys.modules

    def load(path: str, *args: Any, **options: Any) -> Any:
        if path == "code_eval":
            return metric
        if before is None:
            raise ModuleNotFoundError(f"metric '{path}' needs the package 'evaluate'")
        return before(path, *args, **options)

    module.load = load  # type: ignore[attr-defined]
    sys.modules["evaluate"] = module
    try:
        yield
    finally:
        if before is not None:
            module.load = before  # type: ignore[attr-defined]
        if not known:
            sys.modules.pop("evaluate", None)


def adopt(task: Any, metric: CodeEval) -> None:
    """Let an lm-eval task that runs code use `metric`, also where its module was imported before.

    The task then counts as safe to run: what it executes, it executes in the sandbox.
    """
    for function in task._metric_fn_list.values():
        scope = getattr(getattr(function, "__self__", function), "__globals__", {})
        for name in ("compute_", "pass_at_k"):
            if hasattr(scope.get(name), "compute"):
                scope[name] = metric
    task.UNSAFE_CODE = False
    filtered = task.apply_filters

    def apply_filters() -> Any:
        found = filtered()
        metric.ahead(task, task.instances)
        return found

    task.apply_filters = apply_filters
