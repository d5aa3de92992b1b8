"""Write the rows of the miniature: word problems with steps, every one of them generated and verifiable.

    python recipes/miniature/problems.py --out recipes/miniature/data

A story begins with a number of things, one or two events change it, a question ends it; the answer goes through the
events line by line.  A *template* is the order of the events and the sentences they are told with.  Some sentences and
some orders are held out: no fine-tune sees them, and the test set `templates` is made of them alone.  All sets have
seeds of their own.

Files: `pretrain.jsonl` (all sentences, the usual orders: what the miniature's base learns the language from),
`rows.jsonl` (fine-tunes), `validation.jsonl`, and the test sets `seeds.jsonl` and `templates.jsonl` in the form that
`unmask evaluate --tasks FILE` reads.
"""

import argparse
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

NAMES = "Mia Tom Ana Ben Lea Max Zoe Sam Eva Leo Ida Jon Amy Kai Una Raj".split()
THINGS = "apples books cards coins cups eggs hats keys maps nuts pens pins rings shells stamps toys".split()

# Kind of event: (the story's sentence, how the answer names it). The last two of each kind are held out.
EVENTS = {
    "more": [
        ("{name} buys {k} more {things}.", "Buying"),
        ("{name} finds {k} {things} in a box.", "Finding"),
        ("{friend} gives {name} {k} {things}.", "Getting"),
        ("{name} wins {k} {things} at a fair.", "Winning"),
        ("{name} makes {k} new {things}.", "Making"),
        ("{name} picks up {k} {things} on the way home.", "Picking up"),
        ("An aunt sends {name} {k} {things} by post.", "Receiving"),
        ("{name} borrows {k} {things} from {friend}.", "Borrowing"),
    ],
    "fewer": [
        ("{name} loses {k} of them.", "Losing"),
        ("{name} gives {k} {things} to {friend}.", "Giving away"),
        ("{name} sells {k} {things}.", "Selling"),
        ("{name} throws away {k} old {things}.", "Throwing away"),
        ("{friend} takes {k} of the {things}.", "Handing over"),
        ("{name} leaves {k} {things} at school.", "Leaving"),
        ("{k} of the {things} fall into a river.", "Dropping"),
        ("{name} lends {k} {things} to {friend}.", "Lending"),
    ],
    "packs": [
        ("{name} buys {k} packs of {m} {things}.", "packs"),
        ("{friend} brings {k} bags with {m} {things} in each.", "bags"),
        ("{name} gets {k} boxes that hold {m} {things} each.", "boxes"),
        ("{name} opens {k} parcels, each with {m} {things}.", "parcels"),
        ("{name} finds {k} jars, and every jar has {m} {things}.", "jars"),
    ],
}
BEGINNINGS = [
    "{name} has {n} {things}.",
    "{name} starts the day with {n} {things}.",
    "There are {n} {things} on {name}'s desk.",
]
QUESTIONS = [
    "How many {things} does {name} have now?",
    "How many {things} are there in the end?",
    "What is the number of {things} that {name} has at last?",
]
HELD_OUT_SENTENCES = 2
HELD_OUT_ORDERS = {("fewer", "packs"), ("more", "fewer")}
ORDERS = [order for length in (1, 2) for order in itertools.product(EVENTS, repeat=length) if order.count("packs") < 2]


def told(
    order: tuple[str, ...], sentences: dict[str, list[tuple[str, str]]], largest: int, draw: random.Random
) -> dict:
    """One problem of an order of events: prompt, answer, target. No number leaves 0 … `largest`."""
    while True:
        name, friend = draw.sample(NAMES, 2)
        have = draw.randint(2, largest)
        words = {"name": name, "friend": friend, "things": draw.choice(THINGS), "n": have}
        story = [draw.choice(BEGINNINGS).format(**words)]
        steps = ["{name} begins with {n} {things}.".format(**words)]
        for kind in order:
            sentence, way = draw.choice(sentences[kind])
            k, m = (draw.randint(2, 4), draw.randint(2, 4)) if kind == "packs" else (draw.randint(2, largest // 2), 0)
            before, change = have, -k if kind == "fewer" else k * m or k
            have += change
            story.append(sentence.format(k=k, m=m, **words))
            if kind == "packs":
                steps += [f"The {way} hold {k} * {m} = {change}.", f"That makes {before} + {change} = {have}."]
            else:
                verb, sign = ("leaves", "-") if kind == "fewer" else ("makes", "+")
                steps.append(f"{way} {k} {verb} {before} {sign} {k} = {have}.")
            if not 0 < have <= largest:
                break
        else:
            story.append(draw.choice(QUESTIONS).format(**words))
            steps.append(f"The answer is {have}.")
            return {"prompt": " ".join(story), "answer": "\n".join(steps), "target": have}


def problems(count: int, largest: int, seed: str, templates: str) -> Iterator[dict]:
    """`count` different problems. templates: "usual", "held-out", or "language", all sentences in the usual orders."""
    draw = random.Random(seed)
    cut = {kind: len(forms) - HELD_OUT_SENTENCES for kind, forms in EVENTS.items()}
    usual = {kind: forms[: cut[kind]] for kind, forms in EVENTS.items()}
    held_out = {kind: forms[cut[kind] :] for kind, forms in EVENTS.items()}
    sentences = {"usual": usual, "held-out": held_out, "language": EVENTS}[templates]
    orders = sorted(HELD_OUT_ORDERS) if templates == "held-out" else [o for o in ORDERS if o not in HELD_OUT_ORDERS]
    seen = set()
    while len(seen) < count:
        problem = told(draw.choice(orders), sentences, largest, draw)
        if problem["prompt"] not in seen:
            seen.add(problem["prompt"])
            yield problem


def as_row(problem: dict) -> dict:
    """A chat to learn from."""
    roles = (("user", problem["prompt"]), ("assistant", problem["answer"]))
    return {"messages": [{"role": role, "content": text} for role, text in roles]}


def as_item(problem: dict) -> dict:
    """An item of an own task: right when the answer's last number is the target."""
    return {"prompt": problem["prompt"], "target": problem["target"], "score": "number"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--largest", type=int, default=12, help="largest number in a story (default 12)")
    parser.add_argument("--pretrain", type=int, default=120_000, help="rows for the base (default 120000)")
    parser.add_argument("--rows", type=int, default=40_000, help="rows for fine-tunes (default 40000)")
    parser.add_argument("--items", type=int, default=1000, help="items of each test set (default 1000)")
    options = parser.parse_args()
    files = {
        "pretrain": (options.pretrain, "language", as_row),
        "rows": (options.rows, "usual", as_row),
        "validation": (500, "usual", as_row),
        "seeds": (options.items, "usual", as_item),
        "templates": (options.items, "held-out", as_item),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for name in ("seeds", "templates", "validation", "rows", "pretrain"):
        count, templates, form = files[name]
        made = [p for p in problems(count, options.largest, name, templates) if p["prompt"] not in taken]
        taken |= {p["prompt"] for p in made}
        text = "".join(json.dumps(form(problem)) + "\n" for problem in made)
        (options.out / f"{name}.jsonl").write_text(text)
        print(f"{len(made)} problems: {options.out / name}.jsonl")


if __name__ == "__main__":
    main()
