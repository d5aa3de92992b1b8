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

    def times_ar(self, mode: str, batch: int) -> dict[int, float]:
        """The mode's rate over mode ar's, at every batch size of at most `batch` at which both were measured."""
        ar, own = self.rates.get("ar", {}), self.rates.get(mode, {})
        return {n: own[n] / ar[n] for n in sorted(set(ar) & set(own)) if n <= batch}


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
        return _admitted(replace(wanted, mode="threshold"), admissible)
    lossless = _lossless(wanted, measured, batch)
    return lossless if wanted.max_loss is None else _lossy(wanted, admissible, measured, batch, lossless)


def _lossless(wanted: Decoding, measured: Measured | None, batch: int) -> Choice:
    """Verified, unless it was measured to be slower than ar. It may be judged at its best batch size: a batch is not
    always full, and it goes by how full it is."""
    found = {} if measured is None else measured.times_ar("verified", batch)
    if measured is None or not found:
        return Choice(replace(wanted, mode="verified"), "ar's text; unmask bench has not measured here how much sooner")
    n = max(found, key=lambda n: found[n])
    what = f"verified is {found[n]:.2f} times ar at batch {n} here (bench of {measured.when})"
    return Choice(replace(wanted, mode="verified" if found[n] >= 1 else "ar"), what)


def _lossy(
    wanted: Decoding, record: Admissible | None, measured: Measured | None, batch: int, lossless: Choice
) -> Choice:
    """Threshold, where the gate lets it lose no more than `max_loss` and it is faster than the lossless modes at every
    batch size that was measured; else as without. A threshold other than the default is only ever raised."""
    assert wanted.max_loss is not None
    threshold, why = _within(wanted, record)
    if record is not None and record.lowest is not None and threshold is not None:
        name = f"threshold {threshold:g}"
        own, verified = ({} if measured is None else measured.times_ar(m, batch) for m in (name, "verified"))
        if not own:
            why = f"bench has not measured {name} here"
        elif slow := [n for n in own if own[n] <= max(1.0, verified.get(n, 0.0))]:
            beside = f", verified {verified[slow[0]]:.2f}" if slow[0] in verified else ""
            why = f"{name} is {own[slow[0]]:.2f} times ar at batch {slow[0]} here{beside}"
        else:
            taken = replace(wanted, mode="threshold", rule="threshold", threshold=threshold)
            speed = " and ".join(f"{times:.2f} times ar at batch {n}" for n, times in own.items())
            return Choice(taken, f"{name} loses at most {record.points:g} points and is {speed} here")
    return replace(lossless, why=f"{lossless.why}; {why}")


def _within(wanted: Decoding, record: Admissible | None) -> tuple[float | None, str]:
    """The threshold that the gate admits for `max_loss`, or None and why there is none."""
    assert wanted.max_loss is not None
    rule, asked = wanted.rule_parameter()
    if wanted.leftmost is not None:
        return None, f"threshold has no {wanted.leftmost}"
    if rule != "threshold" or asked is None:
        return None, f"the gate measured rule threshold, not {rule}"
    if record is None:
        return None, "no gate has measured what threshold loses (unmask evaluate --gate)"
    if record.lowest is None:
        return None, f"the gate was held to {record.points:g} points over {record.items} items, and no threshold passed"
    if record.points > wanted.max_loss:
        return None, f"the gate allowed {record.points:g} points, more than {wanted.max_loss:g}"
    return (record.lowest if asked == Decoding.threshold else max(asked, record.lowest)), ""


def _admitted(wanted: Decoding, record: Admissible | None) -> Choice:
    """Mode threshold within the model's gate: with the rule threshold, one below the lowest admissible is raised to it;
    where none is admissible, mode ar is taken. Where `max_loss` is given, mode ar unless the gate was held to it."""
    rule, threshold = wanted.rule_parameter()
    if wanted.leftmost is not None:
        return Choice(replace(wanted, mode="ar"), f"threshold has no {wanted.leftmost}")
    if wanted.max_loss is not None and (why := _within(wanted, record)[1]):
        return Choice(replace(wanted, mode="ar"), why)
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
