"""What keeps a task of lm-eval from being run here, found out before any work."""

from typing import Any

from unmask.evaluate import sandbox
from unmask.evaluate.code import CodeEval, adopt


def first_metric(task: Any) -> tuple[str, str]:
    """(metric, filter) that come first in a task."""
    return next(iter(task._metric_fn_list), ""), task._filters[0].name


def problem(task: Any, metric: tuple[str, str], code: CodeEval) -> str:
    """Why a task cannot be run, in one line; empty where it can. A task that runs code is given the sandbox."""
    docs = task.eval_docs
    if not len(docs):
        return "its data has no item"
    if task.config.doc_to_image or task.config.doc_to_audio:
        return "asks about pictures or sounds"
    if task.config.repeats > 1:
        return f"asks for {task.config.repeats} answers to each prompt, of which no single one is its score"
    shots = task.config.num_fewshot or 0
    if shots > (found := _examples(task)):
        return (
            f"needs {shots} few-shot examples, and outside the split to be scored its data has {found}; give the "
            "training split too, or another --num-fewshot"
        )
    if getattr(task, "UNSAFE_CODE", False):
        if lacks := "" if code.allow_weaker else sandbox.missing():
            return lacks
        adopt(task, code)
    return _unscored(task, docs[0], metric)


def _examples(task: Any) -> int:
    """How many worked examples there are that are not scored themselves."""
    if (task.config.num_fewshot or 0) == 0:
        return 0
    config, given = task.config, task.fewshot_cfg
    scored = config.test_split if task.has_test_docs() else config.validation_split
    if given.split is None and given.samples is None:
        split = config.training_split if task.has_training_docs() else config.validation_split
        split = split if split or not task.has_test_docs() else config.test_split
    else:
        split = given.split
    return 0 if split == scored else len(list(task.fewshot_docs()))


def _unscored(task: Any, doc: Any, metric: tuple[str, str]) -> str:
    """Why made-up answers to an item do not get a share of 1 as their score, by which a task could be compared."""
    name = metric[0]
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        return "asks how likely a whole text is, which is no score from 0 to 1"
    if task.higher_is_better().get(name) is False:
        return f"its score, {name}, is better where it is lower"
    try:
        found = [score.get(name) for score in _scores(task, doc, metric[1])]
    except Exception as error:
        return f"its scoring fails on an answer ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    wrong = [value for value in found if not isinstance(value, bool | int | float) or not 0 <= value <= 1]
    return f"its score, {name}, is not a number from 0 to 1 for each item" if wrong else ""


def _scores(task: Any, doc: Any, chosen: str) -> list[dict[str, Any]]:
    """What a task makes of answers: likelihoods, or an empty text, a short one and the target."""
    if task.OUTPUT_TYPE != "generate_until":
        choices = len(task.doc_to_choice(doc)) if task.OUTPUT_TYPE == "multiple_choice" else 1
        choices *= 2 if "acc_mutual_info" in task._metric_fn_list else 1
        return [task.process_results(doc, [(-1.0 - number, False) for number in range(choices)])]
    from lm_eval.api.instance import Instance

    target = task.doc_to_target(doc)
    scores = []
    for text in ("", "0", str(target[0] if isinstance(target, list) and target else target)):
        instance = Instance("generate_until", doc, ("", {}), 0)
        instance.resps = [text]
        for each in task._filters:
            each.apply([instance])
        scores.append(task.process_results(doc, [instance.filtered_resps[chosen]]))
    return scores
