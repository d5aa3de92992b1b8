"""Serve a model: the API that OpenAI's clients speak, and a page in the browser that shows blocks being written.

The address is this machine's own unless --host names another. Stops on Ctrl-C or SIGTERM, and lets answers end first.
"""

import argparse
import dataclasses
import functools
import sys

from unmask.commands.loading import add_loading, load_model, loading
from unmask.errors import MissingExtraError
from unmask.options import add_flags, given, read

EXAMPLES = """examples:
  unmask serve
  unmask serve --model runs/mine --port 9000 --batch-size 16
  UNMASK_API_KEY=secret unmask serve --host 0.0.0.0
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"model": "demo", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from unmask.serve.settings import Serving

    add_loading(parser)
    add_flags(parser.add_argument_group("server"), Serving)


def run(args: argparse.Namespace) -> int:
    from unmask.serve.settings import Serving, check_exposed

    settings = read(Serving, given(args, Serving), flags=given(args, Serving))
    settings = dataclasses.replace(settings, api_key=settings.key)  # replicas elsewhere have another environment
    if warning := check_exposed(settings):
        print(f"warning: {warning}", file=sys.stderr)
    try:
        from unmask.serve.app import name_of
        from unmask.serve.replicas import serve_replicas
        from unmask.serve.run import serve
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "serve") from None
    name = settings.name or name_of(loading(args)["ref"])
    if settings.replicas > 1:
        serve_replicas(loading(args), name, settings)
    else:
        serve(functools.partial(load_model, args), name, settings)
    return 0
