"""Rows of training text: sources to records, records to token ids with labels, and the order of their batches."""

from unmask.data.encode import encode
from unmask.data.order import Order, consecutive
from unmask.data.packing import Packing, packing_of
from unmask.data.rows import Rows, load_rows, open_rows
from unmask.data.sources import read_jsonl
from unmask.data.stored import Chosen, Row

__all__ = [
    "Chosen",
    "Order",
    "Packing",
    "Row",
    "Rows",
    "consecutive",
    "encode",
    "load_rows",
    "open_rows",
    "packing_of",
    "read_jsonl",
]
