"""What mode verified guesses, what is accepted of it, and where the time of a token goes."""

from collections import Counter

from unmask.bench.answers import PLAIN, Row, compared, rate
from unmask.report import Section

SOURCES = {"draft": "a draft", "text": "earlier text", "rest": "what a draft left", "none": "nothing"}


def guesses_section(rows: list[Row], hot: list[Row]) -> Section:
    """Of mode verified at the smallest batch size. hot: rows of text that no draft can guess."""
    verified = [row for row in rows if row["mode"] == "verified"]
    smallest = min(row["batch"] for row in verified)
    section = Section(
        "What mode verified guesses",
        f"At batch {smallest}: where the guesses of its checks came from, their length, and what was accepted of them.",
        ("workload", "from", "checks", "guessed", "accepted", "share of the tokens"),
    )
    for row in verified:
        if row["batch"] == smallest:
            for source, name in SOURCES.items():
                own = [(n, kept) for kind, n, kept in row["guesses"] if kind == source]
                if own:
                    guessed, kept = sum(n for n, _ in own) / len(own), sum(kept for _, kept in own) / len(own)
                    share = (sum(kept for _, kept in own) + len(own)) / max(1, row["tokens"])
                    section.row(row["workload"], name, len(own), guessed, kept, share)
    plain = {row["workload"]: row for row in rows if row["mode"] == PLAIN and row["batch"] == smallest}
    slots = {workload: _by_slot(row["guesses"]) for workload, row in plain.items()}
    section.lines("acceptance by slot of a draft", "slot", slots)
    for workload, points in slots.items():
        section.figures |= {f"acceptance_{workload}_slot{slot}": share for slot, share in points}
    first = [row for row in rows if row["batch"] == smallest]
    bars = {
        mode: _spent([row for row in first if row["mode"] == mode]) for mode in dict.fromkeys(r["mode"] for r in first)
    }
    section.lines("where the time of a token goes, ms", "", bars)
    forwards = {
        mode: [(row["workload"], row["tokens"] / row["forwards"]) for row in first if row["mode"] == mode]
        for mode in bars
    }
    section.lines("tokens per forward", "", forwards)
    times = compared(hot, mode="verified", workload="chat", batch=1)[1]
    if times is not None:
        section.figures["verified_vs_ar_unguessable"] = times
        section.about += f" On text that no draft can guess (temperature 2) it runs at {times:.2f} times mode ar."
    return section


def _by_slot(guesses: list[tuple[str, int, int]]) -> list[tuple[int, float]]:
    """(slot, share accepted of those whose predecessors were) from slot 1, the first guess, on."""
    widest = max((n for _, n, _ in guesses), default=0)
    found = []
    for slot in range(widest):
        reached = [kept > slot for _, n, kept in guesses if n > slot and kept >= slot]
        if reached:
            found.append((slot + 1, sum(reached) / len(reached)))
    return found


def _spent(rows: list[Row]) -> list[tuple[str, float]]:
    """Milliseconds per token by what they were spent on; other is all that is neither a forward nor a proposal."""
    tokens = max(1, sum(row["tokens"] for row in rows))
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row["spent"])
    total["other"] = max(0.0, sum(row["seconds"] for row in rows) - sum(total.values()))
    return [(name, 1e3 * seconds / tokens) for name, seconds in total.items()]


def gain_of(rows: list[Row], assumed: float) -> float:
    """Tokens accepted of a draft, the mean over all whole ones; `assumed` where there is none."""
    checks = [(n, kept) for row in rows if row["mode"] == PLAIN for _, n, kept in row["guesses"]]
    widest = max((n for n, _ in checks), default=0)
    kept = [kept for n, kept in checks if n == widest > 0]
    return sum(kept) / len(kept) if kept else assumed


def rates_of(rows: list[Row], thresholds: list[Row]) -> dict[str, dict[int, float]]:
    """Tokens per second over all workloads by mode and batch size, of mode threshold by threshold."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["mode"], {})[row["batch"]] = rate(rows, mode=row["mode"], batch=row["batch"]) or 0.0
    for row in thresholds:
        if row["mode"] == "threshold" and row["schedule"] == "reference":
            found.setdefault(f"threshold {row['threshold']:g}", {})[row["batch"]] = rate([row]) or 0.0
    return found
