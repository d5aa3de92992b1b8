"""The files of a run: journals of what is done, the rows in their order, and what made them.

OUT.jsonl.partial and OUT.jsonl.made hold one JSON object per finished job, in the order in which they finished. The
rows come to OUT.jsonl at the end, all at once; OUT.about.json says how they were made.
"""

import json
import os
from pathlib import Path
from typing import Any

from unmask.errors import CheckpointError
from unmask.journal import changed, replacement, writing
from unmask.model.files import read_json

LONGEST_NAME = 255
"""Bytes of a file's name, as file systems have it."""


class Place:
    """Where a run writes: `out`, the file about it, and the journals of its two phases."""

    def __init__(self, out: Path) -> None:
        if not out.name or os.path.isdir(out):
            raise CheckpointError(f"{out} is a directory; give a file that does not exist yet")
        self.out, self.about = out, out.with_name(out.name.removesuffix(".jsonl") + ".about.json")
        self.answers, self.prompts = (out.with_name(out.name + end) for end in (".partial", ".made"))
        if len(os.fsencode(self.about.name)) + len("..tmp") > LONGEST_NAME:
            raise CheckpointError(
                f"--out has a name of {len(out.name)} letters, too long for a file; give a shorter one"
            )

    def check(self, resume: bool) -> None:
        """Refuse to overwrite what is there, or to resume what is not."""
        there = [file for file in (self.out, self.about, self.answers, self.prompts) if file.exists()]
        if there and not resume:
            raise CheckpointError(f"{there[0]} exists; give --resume to continue that run, or another --out")
        if there and not self.about.is_file():
            raise CheckpointError(f"{self.out} was not written by synthesize: {self.about.name} is missing")

    def begin(self, about: dict[str, Any]) -> dict[str, Any]:
        """Write how the rows are made; where a run was begun, return its file, whose making must be the same."""
        now = json.loads(json.dumps(about))
        if self.about.is_file():
            before = read_json(self.about)
            if not isinstance(before.get("counts"), dict) or not isinstance(before.get("complete"), bool):
                raise CheckpointError(f"{self.about} is damaged: it must say counts and complete; give another --out")
            if (differs := changed(before.get("made_with", {}), now)) is not None:
                key, old, new = differs
                raise CheckpointError(
                    f"{key} is {new!r}, {self.out} was begun with {old!r}; resume with the same, or give another --out"
                )
            return before
        self.describe(now, {}, complete=False)
        return {"complete": False}

    def describe(self, made_with: dict[str, Any], counts: dict[str, Any], *, complete: bool) -> None:
        text = json.dumps(
            {"complete": complete, "counts": counts, "made_with": made_with}, indent=2, ensure_ascii=False
        )
        with replacement(self.about) as file:
            file.write(text.encode() + b"\n")

    def clear(self) -> None:
        """Remove the journals of a complete run."""
        with writing(self.out):
            for file in (self.answers, self.prompts):
                file.unlink(missing_ok=True)
