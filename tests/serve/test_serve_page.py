"""What docs/serve.md says exists, and its example runs."""

import argparse
import re
from pathlib import Path

import pytest
from serving import CAUSAL, running, tiny

from unmask.commands import serve
from unmask.serve.schema import EMPTY, IGNORED, Asked, ChatAsked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serve.md").read_text()


def test_flags_exist():
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    named = {
        flag
        for block in re.findall(r"`[^`]*--[^`]*`|unmask serve.*", PAGE)
        for flag in re.findall(r"--[a-z][a-z-]+", block)
    }
    assert named - set(parser._option_string_actions) - {"--head", "--address", "--help"} == set()


def test_fields_exist():
    known = set(ChatAsked.model_fields) | set(EMPTY) | set(IGNORED) | {"prompt"}
    [paragraph] = re.findall(r"As OpenAI's: .*?\n\n", PAGE, re.DOTALL)
    named = set(re.findall(r"`([a-z_]+)(?:\.include_usage)?`", paragraph)) - {
        "auto",
        "ar",
        "verified",
        "openai",
        "extra_body",
    }
    assert named <= known
    assert set(Asked.OWN) | {"provisional"} <= named


def test_routes_exist():
    with running(tiny()) as server:
        paths = set(server.http.get("/openapi.json").json()["paths"])
    named = {path for path in re.findall(r"(/v1/[\w/]+|/health|/ready|/metrics)`", PAGE)} - {"/v1/models/NAME"}
    assert named <= paths and {"/v1/models/{name}", "/v1/chat/completions"} <= paths


def test_the_example_runs(capsys):
    pytest.importorskip("openai")
    code = next(text for language, text in re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL) if language == "python")
    assert CAUSAL.context == "causal"
    with running(tiny()) as server:
        exec(code.replace("http://127.0.0.1:8000", server.url).replace('"demo"', '"tiny"'), {})  # noqa: S102
    assert capsys.readouterr().out
