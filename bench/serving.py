"""Load a server: many clients at once, every answer compared with the same prompt asked alone.

    unmask serve --batch-size 16 --queue 128 --port 8000 &
    python bench/serving.py --url http://127.0.0.1:8000 --clients 64 --seconds 300 --pid $!
    python bench/serving.py --url http://127.0.0.1:8000 --table

First every prompt is asked alone, one after the other (greedy, mode ar). Then the clients ask for `--seconds`, half of
them as streams, in modes ar and verified by turns (`--modes`); in float32 each answer must be the one that was given
alone.  With `--pid` the server's memory is read at the start, the middle and the end.  `--table` measures instead the
time to the first text and the tokens per second of each mode with 1, 4 and 16 clients.
"""

import argparse
import asyncio
import importlib.resources
import itertools
import json
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

CHAT = "/v1/chat/completions"


@dataclass
class Seen:
    """What the clients saw. seconds of whole answers, to the first text of streams; tokens; what went wrong."""

    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    tokens: int = 0
    wrong: Counter[str] = field(default_factory=Counter)


def prompts() -> list[str]:
    rows = (importlib.resources.files("unmask") / "assets/demo_prompts.jsonl").read_text().splitlines()
    return [json.loads(row)["prompt"] for row in rows]


def asked(prompt: str, mode: str, limit: int, stream: bool) -> dict:
    messages = [{"role": "user", "content": prompt}]
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {"model": NAME, "messages": messages, "mode": mode, "max_tokens": limit, "temperature": 0} | options


async def whole(http: httpx.AsyncClient, body: dict, seen: Seen) -> str:
    began = time.perf_counter()
    found = await http.post(CHAT, json=body)
    found.raise_for_status()
    reply = found.json()
    seen.seconds.append(time.perf_counter() - began)
    seen.tokens += reply["usage"]["completion_tokens"]
    return reply["choices"][0]["message"]["content"]


async def streamed(http: httpx.AsyncClient, body: dict, seen: Seen) -> str:
    began, text, ended = time.perf_counter(), "", False
    async with http.stream("POST", CHAT, json=body) as found:
        found.raise_for_status()
        async for line in found.aiter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line:
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(chunk["error"]["message"])
                delta = chunk["choices"][0]["delta"].get("content", "") if chunk["choices"] else ""
                if delta and not text:
                    seen.first.append(time.perf_counter() - began)
                text += delta
                seen.tokens += (chunk.get("usage") or {}).get("completion_tokens", 0)
    if not ended:
        raise RuntimeError("the stream broke off")
    seen.seconds.append(time.perf_counter() - began)
    return text


async def client(number: int, url: str, until: float, modes: list[str], limit: int, right: dict, seen: Seen) -> None:
    order = itertools.cycle(list(right)[number % len(right) :] + list(right)[: number % len(right)])
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        for turn in itertools.count(number):
            if time.perf_counter() >= until:
                return
            prompt = next(order)
            stream = turn % 2 == 0
            try:
                body = asked(prompt, modes[turn // 2 % len(modes)], limit, stream)
                text = await (streamed if stream else whole)(http, body, seen)
                if text != right[prompt]:
                    seen.wrong["another text than alone"] += 1
            except Exception as error:
                seen.wrong[f"{type(error).__name__}: {str(error)[:80]}"] += 1


def memory(pid: int | None) -> float:
    """Megabytes that the process holds."""
    if pid is None:
        return 0.0
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


async def alone(url: str, limit: int) -> tuple[dict[str, str], float]:
    """The right answers, and tokens per second of the requests one by one."""
    seen, right, began = Seen(), {}, time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        for prompt in prompts():
            right[prompt] = await whole(http, asked(prompt, "ar", limit, False), seen)
    return right, seen.tokens / (time.perf_counter() - began)


async def load(args: argparse.Namespace) -> dict:
    right, rate = await alone(args.url, args.max_tokens)
    seen, began, before = Seen(), time.perf_counter(), memory(args.pid)
    until = began + args.seconds
    clients = [
        client(number, args.url, until, args.modes, args.max_tokens, right, seen) for number in range(args.clients)
    ]
    half = asyncio.create_task(asyncio.sleep(args.seconds / 2, None))
    half.add_done_callback(lambda _: middle.append(memory(args.pid)))
    middle: list[float] = []
    await asyncio.gather(*clients)
    took = time.perf_counter() - began
    return {
        "clients": args.clients,
        "seconds": round(took, 1),
        "answers": len(seen.seconds),
        "wrong": dict(seen.wrong),
        "tokens_per_second": round(seen.tokens / took, 1),
        "tokens_per_second_one_by_one": round(rate, 1),
        "times": round(seen.tokens / took / rate, 2),
        "seconds_p50": round(statistics.median(seen.seconds), 2),
        "seconds_p95": round(statistics.quantiles(seen.seconds, n=20)[-1], 2),
        "first_text_p50": round(statistics.median(seen.first), 2),
        "first_text_p95": round(statistics.quantiles(seen.first, n=20)[-1], 2),
        "memory_mb": [round(each) for each in (before, *middle, memory(args.pid))],
    }


async def table(args: argparse.Namespace) -> list[dict]:
    """Time to the first text and tokens per second by mode and number of clients; all prompts, streamed."""
    rows = []
    for clients, mode in itertools.product((1, 4, 16), ("ar", "verified", "threshold")):
        seen, left, began = Seen(), list(prompts()), time.perf_counter()

        async def one(left: list[str], mode: str, seen: Seen) -> None:
            async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
                while left:
                    await streamed(http, asked(left.pop(), mode, args.max_tokens, True), seen)

        await asyncio.gather(*(one(left, mode, seen) for _ in range(clients)))
        took = time.perf_counter() - began
        rows.append(
            {
                "clients": clients,
                "mode": mode,
                "first_text_p50": round(statistics.median(seen.first), 3),
                "tokens_per_second": round(seen.tokens / took, 1),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    global NAME
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--modes", nargs="+", default=["ar", "verified"])
    parser.add_argument("--pid", type=int, help="the server's process, for its memory")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    NAME = httpx.get(f"{args.url}/v1/models").json()["data"][0]["id"]
    print(json.dumps(asyncio.run(table(args) if args.table else load(args)), indent=1))


NAME = ""
if __name__ == "__main__":
    main()
