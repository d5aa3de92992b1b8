"""The prepared script for a GPU: its parity part runs on a CPU too."""

import json
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu.py"


def test_parity_on_a_cpu(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--device", "cpu", "--out", str(tmp_path / "out.json")])
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    except SystemExit as e:
        assert e.code == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert len(report["parity"]) == 12 and report["figures"] == {}
    assert all(off < 1e-4 for name, off in report["parity"].items() if name.endswith("float32"))
    assert json.loads(capsys.readouterr().out) == report


def test_speed_on_a_cpu_with_a_tiny_shape(monkeypatch):
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setitem(
        script["SIZES"], "tiny", {"hidden": 64, "layers": 1, "heads": 4, "kv": 2, "ff": 128, "vocab": 300}
    )
    figures = script["speed"]("tiny", "cpu", [1, 2])
    expected = {f"tiny_batch{n}_{what}" for n in (1, 2) for what in ("ar", "transformers", "vs_transformers")}
    assert expected <= set(figures) and all(value > 0 for value in figures.values())
