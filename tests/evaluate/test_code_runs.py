"""Code tasks in a run: all programs of a task run together, and a weaker sandbox is told."""

import json

import pytest
from test_refused import evaluate, models  # noqa: F401

pytest.importorskip("lm_eval")

from unmask.evaluate import code, sandbox  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ITEM = {
    "prompt": "x = ",
    "canonical_solution": "1\n",
    "test": "def check(candidate):\n    pass\n",
    "entry_point": "int",
}


def test_programs_run_together_and_the_weaker_sandbox_is_told(evaluate, tmp_path, monkeypatch):  # noqa: F811
    rows = [{**ITEM, "task_id": f"HumanEval/{n}", "prompt": f"x = {n} #"} for n in range(3)]
    (tmp_path / "HumanEval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sandbox, "missing", lambda: "no namespaces here")
    ran, kept = [], code.run_many

    def watched(programs, *args, **limits):
        ran.append(list(programs))
        return kept(programs, *args, **limits)

    monkeypatch.setattr(code, "run_many", watched)
    words = ("--modes", "ar,verified", "--data", tmp_path)
    tell, err = evaluate(*words, tasks="humaneval")
    assert tell == 2 and "no task can be run: humaneval: no namespaces here" in err
    ran.clear()
    assert evaluate(*words, "--weaker-sandbox", tasks="humaneval")[0] == 0
    runs = [batch for batch in ran if len(batch) > 1]
    assert [len(batch) for batch in runs] == [3, 3] and len(ran) <= 6  # the others: made-up answers, one by one
    assert ["x = 0 #" in runs[0][0], "x = 2 #" in runs[0][2]] == [True, True]
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["made_with"]["notes"]["sandbox"] == "generated code ran in the weaker sandbox"
