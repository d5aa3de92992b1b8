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
    assert len(report["parity"]) == 8 and report["figures"] == {}
    assert all(off < 1e-4 for name, off in report["parity"].items() if name.endswith("float32"))
    assert json.loads(capsys.readouterr().out) == report
