"""Write the prompts of the demo's training text: school mathematics and requests for Python functions.

    python recipes/demo/prompts.py --gsm8k gsm8k_train.jsonl --out recipes/demo/data

Mathematics: questions of the GSM8K train split (their human answers are not used).  Code: the first docstring line of
functions in Python's standard library, numpy, sympy and networkx, put as a request.  What `--exclude` holds, and the
prompts that the package ships for `unmask demo` and `unmask bench`, are left out.  Of each kind the first `--train` go
to `prompts.jsonl`, the next `--held-out` to `validation.jsonl`, as many again to `test.jsonl`, the next `--more` to
`more.jsonl`.  Chat prompts are made by the model: `unmask synthesize --make`.
"""

import argparse
import ast
import importlib.util
import json
import random
import sysconfig
from itertools import accumulate
from pathlib import Path

ASSETS = Path(__file__).parents[2] / "src/unmask/assets"
PACKAGES = ("numpy", "sympy", "networkx")
VERBS = {}
for verb in (
    "return compute convert check create find remove get parse test read write format replace split join sort count "
    "generate evaluate determine make build extract add set encode decode calculate give apply compare merge print"
).split():
    third = verb[:-1] + "ies" if verb.endswith("ply") else verb + "s"
    VERBS[verb] = VERBS[third] = third


def mathematics(path: Path) -> list[str]:
    """Questions of at most 320 characters, in the file's order."""
    questions = (json.loads(line)["question"].strip() for line in path.read_text(encoding="utf-8").strip().split("\n"))
    return [question for question in questions if len(question) < 320]


def request(line: str) -> str | None:
    """A docstring's first line as a request, or None where it does not begin with one of the verbs."""
    words = line.rstrip(".").split()
    if not 5 <= len(words) <= 18 or words[0].lower() not in VERBS:
        return None
    return f"Write a Python function that {VERBS[words[0].lower()]} {' '.join(words[1:])}."


def functions(root: Path) -> list[str]:
    """First docstring lines of the functions below a folder, tests left out."""
    found = []
    for path in sorted(root.rglob("*.py")):
        if "test" in str(path.relative_to(root)) or "site-packages" in path.relative_to(root).parts:
            continue
        try:
            tree = ast.parse(path.read_text(errors="ignore"))
        except SyntaxError:
            continue
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        found += [(ast.get_docstring(node) or "").strip().split("\n")[0] for node in nodes]
    return found


def code() -> list[str]:
    """Requests, each once, sorted."""
    roots = [Path(sysconfig.get_paths()["stdlib"])]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"the package {name} is not installed: pip install {' '.join(PACKAGES)}")
        roots.append(Path(spec.origin).parent)
    return sorted({text for root in roots for line in functions(root) if (text := request(line))})


def prompts_of(path: Path) -> set[str]:
    """The prompts of a JSONL file of prompts or of chats."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").strip().split("\n")]
    return {row["prompt"] if "prompt" in row else row["messages"][0]["content"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--exclude", type=Path, nargs="*", default=[], help="files of prompts or rows to leave out")
    parser.add_argument("--train", type=int, default=560)
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--more", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    left_out = set().union(*map(prompts_of, [*ASSETS.glob("*_prompts.jsonl"), *args.exclude]))
    args.out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[dict]] = {"prompts": [], "validation": [], "test": [], "more": []}
    for kind, prompts in {"math": mathematics(args.gsm8k), "code": code()}.items():
        prompts = [prompt for prompt in prompts if prompt not in left_out]
        random.Random(args.seed).shuffle(prompts)
        borders = list(accumulate((0, args.train, args.held_out, args.held_out, args.more)))
        for name, start, end in zip(parts, borders, borders[1:], strict=False):
            parts[name] += [{"prompt": prompt, "kind": kind} for prompt in prompts[start:end]]
        print(f"{kind}: {len(prompts)} prompts, {min(len(prompts), borders[-1])} used")
    for name, rows in parts.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (args.out / f"{name}.jsonl").write_text(text)


if __name__ == "__main__":
    main()
