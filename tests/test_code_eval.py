"""The stand-in for the hub's `code_eval`: its interface, its estimate, its place in lm-eval's code tasks."""

import sys
from types import ModuleType

import pytest

from unmask.evaluate import code, sandbox
from unmask.evaluate.code import CodeEval, in_place_of_code_eval, pass_at
from unmask.evaluate.sandbox import Verdict

needs_sandbox = pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing() or "-")


@needs_sandbox
def test_right_wrong_and_endless_candidates(monkeypatch):
    monkeypatch.setattr(code, "SECONDS", 1.0)
    metric = CodeEval(workers=2)
    tests = ["assert add(2, 3) == 5", "assert one() == 1"]
    candidates = [
        ["def add(a, b): return a * b", "def add(a, b): return a + b"],
        ["def one():\n  while True: pass", "def one(): return 1"],
    ]
    shares, results = metric.compute(references=tests, predictions=candidates, k=[1, 2, 10], num_workers=9, timeout=3.0)
    assert shares == {"pass@1": 0.5, "pass@2": 1.0}, "k above the number of candidates is left out"
    assert [[row["passed"] for _, row in rows] for rows in results.values()] == [[False, True], [False, True]]
    assert results[0][0][1]["result"].startswith("failed: AssertionError")
    assert results[1][0] == (0, {"task_id": 1, "passed": False, "result": "timed out", "completion_id": 0})
    assert [verdict.passed for verdict in metric.verdicts] == [False, True, False, True]


def test_the_estimate_is_that_of_chen_and_others():
    """1 - prod(1 - k / i for i in n - c + 1 … n), their numerically stable form."""
    for total, correct, k in ((10, 3, 1), (10, 3, 5), (5, 5, 2), (5, 0, 5), (8, 6, 4)):
        product = 1.0
        for i in range(total - correct + 1, total + 1):
            product *= 1 - k / i
        expected = 1.0 if total - correct < k else 1 - product
        assert pass_at(k, total, correct) == pytest.approx(expected)


def test_only_code_eval_is_replaced_and_only_for_a_while(monkeypatch):
    real = ModuleType("evaluate")
    real.load = lambda path, *_, **__: f"the hub's {path}"
    real.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "evaluate", real)
    metric, before = CodeEval(), real.load
    with in_place_of_code_eval(metric):
        import evaluate

        assert evaluate.load("code_eval") is metric
        assert evaluate.load("rouge") == "the hub's rouge"
    assert real.load is before


def test_without_the_package_evaluate_a_module_stands_in(monkeypatch):
    monkeypatch.delitem(sys.modules, "evaluate", raising=False)
    monkeypatch.setattr(code.importlib.util, "find_spec", lambda name: None)
    metric = CodeEval()
    with in_place_of_code_eval(metric):
        import evaluate

        assert evaluate.load("code_eval") is metric
        with pytest.raises(ModuleNotFoundError, match="'rouge' needs the package 'evaluate'"):
            evaluate.load("rouge")
    assert "evaluate" not in sys.modules


def test_the_limit_is_cpu_time(monkeypatch):
    seen = {}

    def run_many(programs, workers, **limits):
        seen.update(limits, programs=programs)
        return [Verdict(True, "passed", "") for _ in programs]

    monkeypatch.setattr(code, "run_many", run_many)
    CodeEval(allow_weaker=True).compute(references=["t"], predictions=[["c"]], k=[1])
    assert seen == {"programs": ["c\nt"], "seconds": 10.0, "allow_weaker": True}
