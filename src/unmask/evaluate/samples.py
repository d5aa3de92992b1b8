"""Answers side by side: each item as every contender answered it, what differs from mode ar marked by words."""

import difflib
import html
import re
from collections.abc import Sequence

from unmask.evaluate.outcomes import Contender, Item, Outcome
from unmask.evaluate.pairing import ar_of, of, tasks
from unmask.evaluate.tables import labels, mains
from unmask.report import Section

SAMPLES = 12
"""Items shown of a task."""
LONGEST = 3000
"""Characters shown of a text."""
STYLE = """<style>.answers{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,17rem),1fr));gap:.8rem}
.answers>div,.asked{background:var(--soft);padding:.6rem;border-radius:.4rem;overflow-wrap:anywhere}
.text{white-space:pre-wrap;font:13px/1.45 ui-monospace,monospace}.item{border-left:3px solid var(--line);margin:.6rem 0;
padding:.2rem 0 .2rem .8rem}.head{font-size:.85rem;margin-bottom:.4rem}mark{background:var(--mark);color:inherit;
border-bottom:2px solid}del{opacity:.6}select{font:inherit;padding:.2rem}</style>"""
SCRIPT = """<script>document.getElementById("task").addEventListener("change",e=>{
document.querySelectorAll("details[data-task]").forEach(d=>{d.hidden=e.target.value!==""&&d.dataset.task!==e.target.value;
d.open=d.dataset.task===e.target.value})})</script>"""


def samples_section(outcomes: Sequence[Outcome]) -> Section:
    """The first items of every generation task; those on which the model's modes disagree come first."""
    shown = [each for each in mains(outcomes) if each.role == "model"]
    shown += [each for each in mains(outcomes) if each.role != "model" and each.mode == "ar"]
    names = [task for task in tasks(outcomes) if any(o.task == task and o.kind == "generation" for o in outcomes)]
    about = (
        f"On the page (report.html): up to {SAMPLES} items of each task, first those that one mode gets right and "
        "another wrong, then those with other words, then the rest. Words that mode ar does not have there are marked, "
        "words that only mode ar has are struck out."
    )
    chosen = "".join(f"<option>{html.escape(task)}</option>" for task in names)
    filter_ = f'<label>Task <select id="task"><option value="">all</option>{chosen}</select></label>'
    parts = [_task(task, shown, outcomes) for task in names]
    return Section("Answers side by side", about, markup=STYLE + filter_ + "".join(parts) + SCRIPT)


def _task(task: str, shown: Sequence[Contender], outcomes: Sequence[Outcome]) -> str:
    on = [outcome for outcome in outcomes if outcome.task == task]
    rows: dict[int, dict[str, Item]] = {}
    for each in shown:
        for outcome in of(on, each):
            for item in outcome.items:
                rows.setdefault(item.number, {})[each.name] = item
    tested = [each.name for each in shown if each.role == "model"]
    order = sorted(rows, key=lambda number: (-disagreement(_of(rows[number], tested)), number))
    apart = sum(disagreement(_of(rows[number], tested)) == 2 for number in rows)
    head = f"{html.escape(task)}: {len(rows)} items, on {apart} of them the modes' scores differ"
    called = labels(outcomes)
    body = "".join(_item(number, rows[number], shown, called, outcomes) for number in order[:SAMPLES])
    return f'<details data-task="{html.escape(task)}"><summary>{head}</summary>{body}</details>'


def _of(row: dict[str, Item], names: Sequence[str]) -> list[Item]:
    return [row[name] for name in names if name in row]


def disagreement(items: Sequence[Item]) -> int:
    """2 where scores differ, 1 where only the texts do, else 0."""
    if len({item.score for item in items}) > 1:
        return 2
    return int(len({item.answer for item in items}) > 1)


def _item(
    number: int, row: dict[str, Item], shown: Sequence[Contender], called: dict[str, str], outcomes: Sequence[Outcome]
) -> str:
    any_ = next(iter(row.values()))
    asked = f'<div class="asked"><div class="head">item {number}</div><div class="text">{_cut(any_.prompt)}</div>'
    asked += f'<div class="head"><br>target</div><div class="text">{_cut(any_.target)}</div></div>'
    answers = []
    for each in shown:
        if each.name not in row:
            continue
        item, ar = row[each.name], ar_of(each, outcomes)
        other = row.get(ar.name) if ar is not None and ar.name != each.name else None
        figures = f"score {item.score:g}, {item.tokens} tokens, {item.forwards} forwards, {item.finish_reason}"
        head = f'<div class="head"><b>{html.escape(called[each.name])}</b>: {html.escape(figures)}</div>'
        text = _cut(item.answer) if other is None else marked(other.answer[:LONGEST], item.answer[:LONGEST])
        if other is not None and other.answer == item.answer:
            text = "<i>the same text as mode ar</i>"
        answers.append(f'<div>{head}<div class="text">{text}</div></div>')
    return f'<div class="item">{asked}<br><div class="answers">{"".join(answers)}</div></div>'


def _cut(text: str) -> str:
    return html.escape(text[:LONGEST]) + (" …" if len(text) > LONGEST else "")


def marked(other: str, text: str) -> str:
    """`text` as HTML: <mark> around words that `other` does not have in that place, <del> around those it has more."""
    before, words = (re.findall(r"\S+|\s+", each) for each in (other, text))
    parts = []
    steps = difflib.SequenceMatcher(None, before, words, autojunk=False).get_opcodes()
    for kind, lost, lost_end, start, stop in steps:
        piece, gone = html.escape("".join(words[start:stop])), html.escape("".join(before[lost:lost_end]))
        if kind == "delete" and gone.strip():
            parts.append(f"<del>{gone}</del>")
        parts.append(f"<mark>{piece}</mark>" if kind in ("replace", "insert") and piece.strip() else piece)
    return "".join(parts)
