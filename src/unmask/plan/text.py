"""A plan in lines, for a terminal."""

from collections.abc import Iterator

from unmask.plan.run import Amount, Plan


def lines(plan: Plan) -> Iterator[str]:
    """What `unmask adapt --dry-run` prints."""
    if plan.unread is not None:
        yield f"rows         not read: {plan.unread}"
        yield "             tokens, labels and what follows from them are the most that the recipe allows"
    for name, counts in plan.sources.items():
        yield f"source       {name}"
        for reason, count in sorted(counts.items(), key=lambda pair: (pair[0] != "kept", pair[0])):
            yield f"             {count:>9,} {reason}"
    if plan.rows is not None:
        size = _bytes(plan.rows_bytes or 0)
        yield f"rows         {plan.rows:,} in an epoch, {plan.epochs:.2f} epochs; {size} on the disk of output"
    if plan.validated:
        yield f"validation   {plan.validated:,} rows, whose forwards are not counted below"
    yield f"tokens       {_amount(plan.tokens_per_step)} a step, {plan.tokens:,.0f} in {plan.steps:,} steps"
    yield f"labels       {_amount(plan.labels_per_step)} a step"
    yield f"positions    {plan.positions_per_step:,.0f} fed a step, all streams together"
    yield f"parameters   {plan.parameters:,}, of which {plan.learning:,} learn"
    parts = ", ".join(f"{name} {_bytes(value)}" for name, value in vars(plan.memory).items())
    yield f"memory       {_bytes(plan.memory.total)} on one device ({parts})"
    yield f"operations   {plan.operations:.2e}"
    yield f"time         at {plan.efficiency:.0%} of the peak of a matrix product:"
    for each in plan.estimates:
        fits = {None: "", True: ", fits", False: ", does not fit"}[each.fits]
        yield f"             {_time(each.seconds):>10} on {each.devices} ({_bytes(each.bytes_each)} each{fits})"


def _amount(amount: Amount) -> str:
    if amount.mean == amount.largest:
        return f"{amount.mean:,.0f}"
    return f"{amount.mean:,.0f} (at most {amount.largest:,.0f})"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h" if seconds < 72 * 3600 else f"{seconds / 86400:,.0f} days"
