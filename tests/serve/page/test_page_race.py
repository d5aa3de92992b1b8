"""The race: one prompt in several modes."""

import re

import pytest
from page_server import ANSWER, MODEL, SKY, Hold, Refuse, ar, threshold
from steps import race, watch_again

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


def test_a_race_at_once_says_who_was_first(visit, server):
    holds = {"ar": Hold(), "threshold": Hold()}
    server.scripts |= {"ar": ar(SKY, holds["ar"]), "threshold": threshold(SKY, holds["threshold"])}
    page = visit("#race")
    race(page)
    lanes = {mode: page.get_by_role("region", name=f"Mode {mode}") for mode in ("ar", "verified", "threshold")}
    expect(lanes["verified"].locator(".place")).to_have_text("first")
    expect(lanes["threshold"].locator(".slot").nth(5)).to_have_class(re.compile("decided"))
    expect(lanes["ar"].locator(".prose")).to_have_text("".join(SKY[:-1]))
    expect(lanes["ar"].locator(".speed")).to_have_text("20.0")
    expect(lanes["ar"].locator(".place")).to_have_text("running")
    assert sorted(body["mode"] for body in server.requests) == ["ar", "threshold", "verified"]
    holds["threshold"].gate.set()
    expect(lanes["threshold"].locator(".place")).to_have_text("second")
    holds["ar"].gate.set()
    expect(lanes["ar"].locator(".place")).to_have_text("third")
    expect(page.locator("#race-status")).to_have_text("verified finished first, then threshold, then ar.")
    rows = [row.locator("td").all_text_contents() for row in page.locator("#result tbody tr").all()]
    assert [row[0] for row in rows] == ["0.75", "15", "20.0", "15", "1.00", "1.00 ×", "–"]
    assert [row[1] for row in rows] == ["0.45", "15", "33.3", "9", "1.67", "1.67 ×", "same"]
    expect(page.locator("#result caption")).to_contain_text("shared the machine")


def test_a_race_one_after_another_has_one_request_at_a_time(visit, server):
    hold = Hold()
    server.scripts |= {"ar": ar(SKY, hold), "threshold": threshold(["Other", " text"])}
    page = visit("#race")
    expect(page.locator("#race-form")).to_contain_text("At once, they share the machine")
    race(page, "one after another")
    expect(page.locator(".lane .place")).to_have_text(["running", "waiting", "waiting"])
    page.wait_for_timeout(100)
    assert len(server.requests) == 1
    hold.gate.set()
    expect(page.locator(".lane .place")).to_have_text(["third", "second", "first"])
    assert [body["mode"] for body in server.requests] == ["ar", "verified", "threshold"]
    expect(page.locator("#result caption")).to_have_text("Each had the machine to itself.")
    expect(page.locator("#result tbody tr").last.locator("td")).to_have_text(["–", "same", "differs"])
    expect(page.locator("#race-status")).to_have_text("threshold was the fastest, then verified, then ar.")


def test_a_race_can_be_stopped_and_watched_again(visit, server):
    server.scripts["ar"] = ar(SKY, Hold())
    page = visit("#race")
    race(page)
    expect(page.locator(".lane .place").first).to_have_text("running")
    page.keyboard.press("Escape")
    expect(page.locator(".lane .place").first).to_have_text("stopped")
    assert server.gone.wait(5)
    server.scripts["ar"] = ar(SKY)
    race(page)
    watch_again(page, forwards=3)
    expect(page.locator(".lane .answer > .prose .slot.draft")).to_have_count(5)
    page.keyboard.press("Escape")
    page.clock.resume()
    expect(page.locator(".lane .answer > .prose")).to_have_text([ANSWER] * 3)


def test_a_race_wants_a_prompt_and_two_modes(visit, server):
    page = visit("#race")
    page.get_by_role("button", name="Start the race").click()
    expect(page.locator("#race-status")).to_have_text("Write a prompt first.")
    page.get_by_role("checkbox", name="verified").uncheck()
    page.get_by_role("checkbox", name="threshold").uncheck()
    race(page)
    expect(page.locator("#race-status")).to_have_text("Choose at least two modes.")
    assert server.requests == []


def test_a_lane_that_fails_does_not_end_the_race(visit, server):
    server.scripts["threshold"] = Refuse(400, "threshold is not for this checkpoint")
    page = visit("#race")
    race(page)
    failed = page.get_by_role("region", name="Mode threshold")
    expect(failed).to_contain_text("threshold is not for this checkpoint")
    expect(failed.locator(".place")).to_have_text("failed")
    expect(page.locator("#result thead th")).to_have_text(["ar", "verified"])


def test_a_race_looks_for_the_server_again(visit, server):
    server.key = "s3cret"
    page = visit("#race")
    race(page)
    page.get_by_role("button", name="Enter the key").click()
    page.get_by_label("Key", exact=True).fill("s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("#banner")).to_be_empty()
    race(page)
    expect(page.locator("#result table")).to_be_visible()


def test_a_plain_model_has_no_race(visit, server):
    server.model = MODEL | {"modes": ["ar"], "block_size": None, "sub_block_size": None}
    page = visit("#race")
    expect(page.locator("#race-alone")).to_contain_text("unmask adapt")
    expect(page.locator("#race-form")).to_be_hidden()
