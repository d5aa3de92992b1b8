"""What a recipe will take, before anything is trained: rows, tokens, memory, operations, time (`adapt --dry-run`)."""

from unmask.plan.run import Plan, plan
from unmask.plan.text import lines

__all__ = ["Plan", "lines", "plan"]
