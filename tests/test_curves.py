"""The picture of a run, and the trackers it may also be sent to."""

import importlib.util
import json

import pytest
from training import recipe

from unmask.curves import POINTS, _curve, draw_curves
from unmask.errors import MissingExtraError
from unmask.processes import join


def write_log(output, steps, validated=()):
    lines = []
    for step in range(1, steps + 1):
        found = {"loss": 2.0, "levels": {"0.5": 1.0}, "best_loss": 2.0, "best_step": 1} if step in validated else None
        lines.append(
            {
                "step": step,
                "loss": 5.0 / step,
                "labels": 1,
                "learning_rate": 1e-3,
                "grad_norm": 1.0,
                "validation": found,
            }
        )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (output / "log.jsonl").write_text(text + '{"step": 99, "lo')  # as a kill leaves it


def test_the_picture_shows_what_the_log_says(tmp_path):
    write_log(tmp_path, 12, validated=(5, 10))
    draw_curves(tmp_path)
    picture = (tmp_path / "curves.html").read_text()
    assert picture.count("<svg") == 4 and "Loss (nats per label)" in picture and "0.5 masked" in picture
    write_log(tmp_path, 3)
    draw_curves(tmp_path, older_than=60)
    assert (tmp_path / "curves.html").read_text() == picture
    draw_curves(tmp_path)
    assert (tmp_path / "curves.html").read_text().count("<svg") == 3


def test_a_long_run_is_drawn_as_means():
    points = _curve([{"step": n, "loss": float(n % 2)} for n in range(1, 4 * POINTS + 1)], "loss")
    assert len(points) == POINTS and points[0] == (2.5, 0.5)


def test_without_matplotlib_there_is_no_picture_and_no_word(tmp_path, monkeypatch, capfd):
    write_log(tmp_path, 3)
    monkeypatch.setattr("unmask.curves.find_spec", lambda name: None)
    draw_curves(tmp_path)
    assert not (tmp_path / "curves.html").exists() and capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "track"), ("wandb", "track"), ("accelerate", "train")])
def test_what_is_missing_is_said(tmp_path, monkeypatch, name, extra):
    find = importlib.util.find_spec
    monkeypatch.setattr("unmask.processes.find_spec", lambda wanted: None if wanted == name else find(wanted))
    wanted = {name: True} if name != "accelerate" else {}
    with pytest.raises(MissingExtraError, match=rf"'{name}', which is not installed: pip install 'unmask\[{extra}\]'"):
        join(recipe(tmp_path, tmp_path, tmp_path, **wanted))


def test_tensorboard_gets_the_numbers_of_each_step(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accelerator = join(recipe(tmp_path, tmp_path, tmp_path / "run", tensorboard=True))
    for step in (1, 2):
        accelerator.log({"loss": 5.0 / step}, step=step)
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "run" / "unmask")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 5.0), (2, 2.5)]
