"""Mode auto: the fastest mode that loses nothing, or no more than was allowed, and why.

What a mode loses is known from `unmask evaluate --gate` (`Admissible`), how fast it is here from `unmask bench`
(`Measured`). Where neither has run, auto takes what cannot lose: verified where the checkpoint can, else threshold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.config import BlockSpec, Decoding
from unmask.core.pace import Costs


@dataclass(frozen=True)
class Admissible:
    """Thresholds that passed the gate, those that were refused, and those that had too few items to decide.

    points: the loss against mode ar that was allowed. items: how many were compared. tasks: which. made_with: versions,
    machine and settings of the run. fingerprint: of the weights it was run on; filled in when it is written.
    """

    thresholds: tuple[float, ...]
    refused: tuple[float, ...]
    undecided: tuple[float, ...]
    points: float
    items: int
    tasks: tuple[str, ...] = ()
    made_with: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def floor(self) -> float:
        """The highest threshold that was refused; -1 where none was."""
        return max(self.refused, default=-1.0)

    @property
    def lowest(self) -> float | None:
        """The lowest threshold that passed and above which none was refused; None where there is none."""
        return min((threshold for threshold in self.thresholds if threshold > self.floor), default=None)


@dataclass(frozen=True)
class Measured:
    """What `unmask bench` measured of a model on this machine.

    costs: of forwards. rates: tokens per second by mode ("threshold 0.9" by threshold) and batch size. when: the day.
    """

    costs: Costs
    rates: Mapping[str, Mapping[int, float]]
    when: str

    def times_ar(self, mode: str, batch: int) -> tuple[float, int] | None:
        """(ratio, n): the best ratio to mode ar at a measured batch size n of at most `batch`; None where the mode was
        not measured. Rows come and go, so a batch is not always full."""
        ar, own = self.rates.get("ar", {}), self.rates.get(mode, {})
        both = sorted(set(ar) & set(own))
        sizes = [n for n in both if n <= batch] or both[:1]
        return max(((own[n] / ar[n], n) for n in sizes), default=None)


@dataclass(frozen=True)
class Choice:
    """What auto made of a request. why: in a few words. warning: a line where the gate changed what was asked for."""

    decoding: Decoding
    why: str = ""
    warning: str = ""


def choose(
    wanted: Decoding,
    spec: BlockSpec | None,
    *,
    admissible: Admissible | None = None,
    measured: Measured | None = None,
    batch: int = 1,
) -> Choice:
    """What mode auto takes; any other mode stays as it is. spec: None for a plain model."""
    if wanted.mode != "auto":
        return Choice(wanted)
    if spec is None:
        return Choice(replace(wanted, mode="ar"), "a plain model")
    if spec.context == "block":
        if wanted.logprobs is not None:
            return Choice(replace(wanted, mode="ar"), "logprobs are of mode ar")
        return _admitted(replace(wanted, mode="threshold"), admissible)
    lossless = _lossless(wanted, measured, batch)
    return lossless if wanted.max_loss is None else _lossy(wanted, admissible, measured, batch, lossless)


def _lossless(wanted: Decoding, measured: Measured | None, batch: int) -> Choice:
    """Verified, unless it was measured to be slower than ar."""
    found = None if measured is None else measured.times_ar("verified", batch)
    if measured is None or found is None:
        return Choice(replace(wanted, mode="verified"), "ar's text; unmask bench measures how much sooner")
    times, n = found
    what = f"verified is {times:.2f} times ar at batch {n} here (bench of {measured.when})"
    return Choice(replace(wanted, mode="verified" if times >= 1 else "ar"), what)


def _lossy(
    wanted: Decoding, admissible: Admissible | None, measured: Measured | None, batch: int, lossless: Choice
) -> Choice:
    """Threshold, where the gate lets it lose no more than `max_loss` and it was measured to be faster; else as
    without."""
    assert wanted.max_loss is not None
    why = ""
    if wanted.logprobs is not None:
        why = "threshold has no logprobs"
    elif admissible is None:
        why = "no gate has measured what threshold loses (unmask evaluate --gate)"
    elif admissible.lowest is None:
        why = f"no threshold kept within {admissible.points:g} points"
    elif admissible.points > wanted.max_loss:
        why = f"the gate allowed {admissible.points:g} points, more than {wanted.max_loss:g}"
    else:
        found = None if measured is None else measured.times_ar(f"threshold {admissible.lowest:g}", batch)
        verified = None if measured is None else measured.times_ar("verified", batch)
        best = max(1.0, verified[0] if verified else 0.0)
        if found is None:
            why = f"bench has not measured threshold {admissible.lowest:g} here"
        elif found[0] <= best:
            why = f"threshold {admissible.lowest:g} is {found[0]:.2f} times ar here, not faster"
        else:
            taken = replace(wanted, mode="threshold", rule="threshold", threshold=admissible.lowest)
            gain = f"{found[0]:.2f} times ar at batch {found[1]} here"
            return Choice(taken, f"threshold {admissible.lowest:g} loses at most {admissible.points:g} points, {gain}")
    return replace(lossless, why=f"{lossless.why}; {why}")


def _admitted(wanted: Decoding, record: Admissible | None) -> Choice:
    """Mode threshold within the model's gate: with the rule threshold, one below the lowest admissible is raised to it;
    where none is admissible, mode ar is taken."""
    rule, threshold = wanted.rule_parameter()
    if record is None or rule != "threshold" or threshold is None:
        return Choice(wanted, "context block has no check that verified needs")
    if record.lowest is None:
        why = f"no threshold kept within {record.points:g} points of mode ar when the model was evaluated"
        if open_ := " or ".join(f"{each:g}" for each in record.undecided if each > record.floor):
            why = f"{record.items} items were too few to tell whether threshold {open_} keeps within {record.points:g} "
            why += "points of mode ar"
        return Choice(replace(wanted, mode="ar"), why, f"mode auto takes ar: {why}; --mode threshold overrides")
    if threshold >= record.lowest:
        return Choice(wanted, f"it keeps within {record.points:g} points of mode ar")
    why = f"the lowest that kept within {record.points:g} points of mode ar when the model was evaluated"
    raised = replace(wanted, rule="threshold", threshold=record.lowest)
    return Choice(
        raised, why, f"threshold {threshold:g} is raised to {record.lowest:g}, {why}; --mode threshold overrides"
    )
