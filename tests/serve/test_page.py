"""The page in a real Chromium, against a server that plays scripts."""

import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from page_server import MODEL, PAGE, Hold, PageServer, Refuse, ar, chunk, end, slot, step, text, threshold, verified

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium is installed", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

SKY = ["Blue", " light", " is", " scattered", " more", " than", " red", " light", ",", " so", " the", " sky", " is", " blue", "."]
ANSWER = "".join(SKY)
PHONE = {"width": 375, "height": 720}
WIDE = {"width": 1280, "height": 860}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def server():
    started = PageServer()
    started.scripts = {"auto": verified(SKY), "ar": ar(SKY), "verified": verified(SKY), "threshold": threshold(SKY)}
    yield started
    started.close()


@pytest.fixture
def visit(browser, server):
    """Opens the page; at the end nothing may have gone wrong in it, nor anything been asked of another host."""
    contexts, faults, hosts = [], [], set()

    def opened(path="", **options):
        context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light"} | options)
        contexts.append(context)
        context.set_default_timeout(5000)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
        page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        page.goto(server.url + path)
        return page

    opened.faults = faults
    yield opened
    for context in contexts:
        context.close()
    refused = [fault for fault in faults if "Failed to load resource" not in fault]
    assert refused == []
    assert hosts <= {server.url.split("/")[2]}


def ask(page, question="Why is the sky blue?"):
    page.get_by_label("Your message").fill(question)
    page.get_by_label("Your message").press("Enter")


def answer_of(page):
    return page.locator(".message.assistant").last


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


# ---- the answer


def test_an_answer_is_shown_with_its_figures(visit, server):
    page = visit()
    ask(page)
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    figures = answer_of(page).locator(".figures")
    assert figures.locator("dd").all_text_contents() == ["verified", "33.3", "9", "1.67", "15"]
    expect(answer_of(page)).to_contain_text("Why verified: it loses nothing and was the fastest here")
    (body,) = server.requests
    assert body["messages"] == [{"role": "user", "content": "Why is the sky blue?"}]
    assert (body["mode"], body["stream"], body["provisional"], body["model"]) == ("auto", True, True, "demo")
    assert (body["temperature"], body["max_tokens"]) == (0, 256)
    assert not {"seed", "threshold", "top_p"} & set(body)


def test_events_may_be_cut_anywhere(visit, server):
    server.piece = 7
    server.scripts["auto"] = ar(["Grüße", " 🎉", " 你好"])
    page = visit()
    ask(page)
    expect(answer_of(page).locator(".prose")).to_have_text("Grüße 🎉 你好")


def test_the_limit_of_tokens_is_named(visit, server):
    server.scripts["auto"] = [text("Blue"), end("ar", 1, 1, reason="length"), "[DONE]"]
    page = visit()
    ask(page)
    expect(answer_of(page)).to_contain_text("limit of tokens")


# ---- the block


def test_a_block_fills_out_of_order(visit, server):
    hold = Hold()
    server.scripts["auto"] = threshold(SKY, hold)
    page = visit()
    ask(page)
    slots = page.locator(".answer .slot")
    expect(slots.nth(5)).to_have_class(re.compile("decided"))
    states = [name.split()[1] for name in slots.evaluate_all("all => all.map(node => node.className)")]
    assert states == ["settled", "settled", "settled", "masked", "decided", "decided"]
    assert slots.locator(".token").all_text_contents() == ["Blue", " light", " is", "", " more", " than"]
    assert slots.locator(".order").all_text_contents() == ["", "2", "1", "", "3", "3"]
    expect(page.locator(".answer .running")).to_have_text("3 tokens · 5 forwards · 12.0 tokens/s")
    expect(page.locator("#spoken")).to_be_empty()  # no sentence is committed yet
    expect(page.get_by_role("list", name="Legend of the block")).to_be_visible()
    hold.gate.set()
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    expect(page.locator(".answer > .prose .slot")).to_have_count(0)
    expect(page.locator("#spoken")).to_have_text(ANSWER)


def test_shade_and_number_say_how_sure_a_slot_is(visit, server):
    hold = Hold()
    server.scripts["auto"] = threshold(SKY, hold)
    page = visit()
    ask(page)
    slots = page.locator(".answer .slot")
    expect(slots.nth(5)).to_have_class(re.compile("decided"))
    sure, less = (slots.nth(n).evaluate("node => node.style.getPropertyValue('--sure')") for n in (4, 5))
    assert (sure, less) == ("0.950", "0.930")
    page.wait_for_timeout(250)
    shades = [slots.nth(n).evaluate("node => getComputedStyle(node).backgroundColor") for n in (4, 5)]
    assert shades[0] != shades[1]
    readout = page.locator(".answer .readout")
    slots.nth(4).hover()
    expect(readout).to_have_text("slot 5: “more”, 95 % sure, step 3, decided")
    page.mouse.move(0, 0)
    expect(readout).to_contain_text("arrow keys go on")
    slots.nth(0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text("slot 3: “is”, 98 % sure, step 1, settled")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(readout).to_have_text("slot 5: “more”, 95 % sure, step 3, decided")
    assert page.locator(".answer .slot[tabindex='0']").count() == 1
    hold.gate.set()


def test_the_block_keeps_the_focus_while_it_changes(visit, server):
    first, second = Hold(), Hold()
    block = {"start": 0, "settled": 1, "slots": [slot("Blue", 1.0), slot(None)]}
    later = {"start": 0, "settled": 2, "slots": [slot("Blue", 1.0), slot(" light", 0.9)]}
    server.scripts["auto"] = [step(block, 1, 1), text("Blue"), first, step(later, 2, 2), text(" light"), second, "[DONE]"]
    page = visit()
    ask(page)
    page.locator(".answer .slot").nth(1).focus()
    expect(page.locator(".answer .readout")).to_have_text("slot 2: masked")
    first.gate.set()
    expect(page.locator(".answer .readout")).to_have_text("slot 2: “light”, 90 % sure, step 1, settled")
    expect(page.locator(".answer .slot").nth(1)).to_be_focused()
    second.gate.set()


def test_drafts_are_told_from_settled_text(visit, server):
    hold = Hold()
    server.scripts["auto"] = verified(SKY, hold)
    page = visit()
    ask(page)
    slots = page.locator(".answer .slot")
    expect(slots.nth(4)).to_have_class(re.compile("draft"))
    assert slots.locator(".token").all_text_contents() == [" more", " than", " red", " light", " wrong", " guess"]
    assert page.locator(".answer .slot.settled").count() == 1
    assert page.locator(".answer > .prose").inner_text().startswith("Blue light is scattered")
    expect(page.locator("#spoken")).not_to_contain_text("wrong")
    hold.gate.set()
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)


def test_a_block_that_begins_in_the_prompt_shows_the_answer_only(visit, server):
    hold = Hold()
    slots = [slot("<user>"), slot("?"), slot("Blue", 0.9), slot(None)]
    server.scripts["auto"] = [step({"start": -2, "settled": 3, "slots": slots}, 1, 1), text("Blue"), hold, "[DONE]"]
    page = visit()
    ask(page)
    expect(page.locator(".answer .slot .token")).to_have_text(["Blue", ""])
    hold.gate.set()


def test_the_block_can_be_left_out(visit, server):
    hold = Hold()
    server.scripts["auto"] = threshold(SKY, hold)
    page = visit()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Show the block").uncheck()
    page.get_by_role("button", name="Done").click()
    ask(page)
    expect(page.locator(".answer .running")).to_have_text("3 tokens · 5 forwards · 12.0 tokens/s")
    expect(page.locator(".answer .slot")).to_have_count(0)
    expect(answer_of(page).locator(".prose")).to_have_text("Blue light is")
    hold.gate.set()


@pytest.mark.parametrize(("script", "sizes"), [(threshold, [6, 6, 3]), (verified, [1, 3, 4, 4, 3])])
def test_how_it_was_written_is_told_afterwards(visit, server, script, sizes):
    server.scripts["auto"] = script(SKY)
    page = visit()
    ask(page)
    page.get_by_text("How it was written").click()
    blocks = answer_of(page).locator(".story .block")
    found = [blocks.nth(n).locator(".slot").count() for n in range(blocks.count())]
    assert (sum(found), "".join(blocks.locator(".token").all_text_contents())) == (len(SKY), ANSWER)
    if script is threshold:
        assert found == sizes
        assert blocks.first.locator(".order").all_text_contents() == ["", "2", "1", "4", "3", "3"]


def test_it_can_be_watched_again(visit):
    page = visit()
    ask(page)
    page.get_by_role("button", name="Watch again").click()
    expect(page.locator(".answer .slot.draft").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    expect(page.get_by_role("button", name="Watch again")).to_be_visible()


# ---- stop, retry, history


@pytest.mark.parametrize("how", ["key", "button"])
def test_stop_and_retry(visit, server, how):
    hold = Hold()
    server.scripts["auto"] = threshold(SKY, hold)
    page = visit()
    ask(page)
    expect(page.locator(".answer .slot").nth(5)).to_have_class(re.compile("decided"))
    if how == "key":
        page.keyboard.press("Escape")
    else:
        page.get_by_role("button", name="Stop").click()
    expect(answer_of(page)).to_contain_text("Stopped.")
    expect(answer_of(page).locator(".prose")).to_have_text("Blue light is")
    assert server.gone.wait(5)
    server.scripts["auto"] = verified(SKY)
    page.get_by_role("button", name="Retry").click()
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    assert page.locator(".message").count() == 2
    assert server.requests[0]["messages"] == server.requests[1]["messages"]


def test_history_is_sent_and_survives_a_reload(visit, server):
    page = visit()
    ask(page, "First")
    expect(answer_of(page).locator(".figures")).to_be_visible()
    ask(page, "Second")
    expect(page.locator(".message")).to_have_count(4)
    expect(answer_of(page).locator(".figures")).to_be_visible()
    assert [message["content"] for message in server.requests[1]["messages"]] == ["First", ANSWER, "Second"]
    page.reload()
    expect(page.locator(".message")).to_have_count(4)
    expect(page.locator(".figures")).to_have_count(2)
    expect(page.locator(".chat-name")).to_have_text(["First"])


def test_chats_can_be_opened_deleted_and_brought_back(visit):
    page = visit()
    for name in ("One", "Two"):
        page.get_by_role("button", name="New chat").click()
        ask(page, name)
        expect(answer_of(page).locator(".figures")).to_be_visible()
    expect(page.locator(".chat-name")).to_have_text(["Two", "One"])
    page.get_by_role("button", name="One", exact=True).click()
    expect(page.locator(".message.user .prose")).to_have_text(["One"])
    page.get_by_role("button", name="Delete “One”").click()
    expect(page.locator(".message")).to_have_count(0)
    page.reload()
    expect(page.locator(".chat-name")).to_have_text(["Two"])
    page.get_by_role("button", name="Delete “Two”").click()
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Two", exact=True).click()
    expect(page.locator(".message.user .prose")).to_have_text(["Two"])


def test_a_chat_deleted_while_it_is_answered_stays_deleted(visit, server):
    server.scripts["auto"] = threshold(SKY, Hold())
    page = visit()
    ask(page, "One")
    expect(page.locator(".answer .slot").nth(5)).to_have_class(re.compile("decided"))
    page.get_by_role("button", name="Delete “One”").click()
    assert server.gone.wait(5)
    page.reload()
    expect(page.locator("#chat-list")).to_have_text("Chats are kept in this browser only.")


@pytest.mark.parametrize("junk", ['"text"', "{", "[1]", '{"id": "x", "title": "t", "messages": [{}]}', '{"system": 5, "mode": null}'])
def test_spoilt_storage_is_passed_over(visit, junk):
    page = visit()
    page.evaluate("junk => ['unmask.chat.x', 'unmask.settings'].forEach(name => localStorage.setItem(name, junk))", junk)
    page.reload()
    ask(page)
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)


def test_full_storage_is_said_and_the_chat_goes_on(visit):
    page = visit()
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') } }")
    ask(page)
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    expect(page.locator("#notice")).to_contain_text("not kept")
    expect(page.locator(".chat-name")).to_have_count(1)


# ---- model text is text

HOSTILE = [
    "<img src=x onerror=\"alert('img')\">",
    "<script>alert('script')</script>",
    "<svg onload=\"alert('svg')\"></svg>",
    "[here](javascript:alert('link'))",
    "<a href=\"javascript:alert('a')\">x</a>",
    "```html\n<iframe srcdoc=\"<script>alert('frame')</script>\"></iframe>\n```",
    "https://example.org/\"onmouseover=alert('attribute')",
]


def test_hostile_text_is_shown_and_never_runs(visit, server):
    whole = "\n\n".join(HOSTILE)
    halves = [whole[n : n + 3] for n in range(0, len(whole), 3)]
    server.scripts["auto"] = threshold(halves)
    page = visit()
    ask(page, whole)
    expect(answer_of(page).locator(".figures")).to_be_visible()
    for again in (False, True):
        if again:
            page.reload()
        expect(page.locator(".message")).to_have_count(2)
        for message in page.locator(".message .prose:not(.blocks)").all():
            shown = message.inner_text()
            for part in HOSTILE:
                assert part.removeprefix("```html\n").removesuffix("\n```") in shown
        assert page.locator("#messages").locator("img, script, svg, iframe").count() == 0
        links = page.locator("#messages a").evaluate_all("all => all.map(node => node.getAttribute('href'))")
        assert links == ["https://example.org/"] * 2
        attributes = page.locator("#messages *").evaluate_all("all => all.flatMap(node => node.getAttributeNames())")
        assert not [name for name in attributes if name.startswith("on")]
    page.wait_for_timeout(100)


def test_code_paragraphs_and_links(visit, server):
    source = "Use **this**:\n\n```python\nif x:\n    print('<b>')\n```\n\nSee `x` at http://example.org/a?b=1."
    server.scripts["auto"] = [*[text(letter) for letter in source], end("ar", 9, 9), "[DONE]"]
    page = visit()
    ask(page)
    prose = answer_of(page).locator(".prose")
    expect(prose.locator("pre")).to_have_text("if x:\n    print('<b>')")
    expect(prose.locator("strong")).to_have_text("this")
    expect(prose.locator("p code")).to_have_text("x")
    expect(prose.locator("a")).to_have_attribute("href", "http://example.org/a?b=1")
    assert prose.locator("> *").evaluate_all("all => all.map(node => node.tagName)") == ["P", "PRE", "P"]


# ---- the race


def race(page, order="at once"):
    page.get_by_label("Prompt", exact=True).fill("Why is the sky blue?")
    page.get_by_label(order, exact=True).check()
    page.get_by_role("button", name="Start the race").click()


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
    page.get_by_role("button", name="Watch again").click()
    expect(page.locator(".lane .slot").first).to_be_visible()
    page.keyboard.press("Escape")
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


def test_a_plain_model_has_no_race(visit, server):
    server.model = MODEL | {"modes": ["ar"], "block_size": None, "sub_block_size": None}
    page = visit("#race")
    expect(page.locator("#race-alone")).to_contain_text("unmask adapt")
    expect(page.locator("#race-form")).to_be_hidden()


# ---- settings


def test_settings_travel_with_the_request_and_are_kept(visit, server):
    page = visit()
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings")
    expect(dialog.get_by_label("Threshold")).to_be_disabled()
    dialog.get_by_label("Mode").select_option("threshold")
    for label, value in [("Threshold", "0.8"), ("Temperature", "0.7"), ("Top-p", "0.95"), ("Most tokens", "64"), ("Seed", "7")]:
        dialog.get_by_label(label).fill(value)
    dialog.get_by_label("System prompt").fill("Be brief.")
    dialog.get_by_role("button", name="Done").click()
    page.reload()
    ask(page)
    expect(answer_of(page).locator(".figures")).to_be_visible()
    (body,) = server.requests
    wanted = {"mode": "threshold", "threshold": 0.8, "temperature": 0.7, "top_p": 0.95, "max_tokens": 64, "seed": 7}
    assert {name: body[name] for name in wanted} == wanted
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_a_setting_out_of_range_is_not_taken(visit, server):
    page = visit()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Most tokens").fill("99999")
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.keyboard.press("Escape")
    ask(page)
    expect(answer_of(page).locator(".figures")).to_be_visible()
    assert server.requests[0]["max_tokens"] == 256


# ---- what goes wrong


def test_a_server_that_is_down_is_named_and_found_again(visit, server):
    page = visit()
    expect(page.locator("#model")).to_have_text("demo")
    port = server.server_address[1]
    server.close()
    ask(page)
    expect(answer_of(page).get_by_role("alert")).to_contain_text("unmask serve")
    again = PageServer(port)
    again.scripts["auto"] = verified(SKY)
    try:
        page.get_by_role("button", name="Try again").click()
        expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    finally:
        again.close()


def test_a_key_is_asked_for_and_kept_in_the_tab_only(visit, server):
    server.key = "s3cret"
    page = visit()
    page.get_by_role("button", name="Enter the key").click()
    page.get_by_label("Key", exact=True).fill("s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("#banner")).to_be_empty()
    ask(page)
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    assert page.evaluate("Object.values(localStorage).join()").find("s3cret") == -1
    assert page.evaluate("sessionStorage.getItem('unmask.key')") == "s3cret"
    server.key = "another"
    ask(page)
    expect(answer_of(page).get_by_role("alert")).to_contain_text("This server wants a key.")


def test_a_busy_server_says_when_to_come_back(visit, server):
    server.scripts["auto"] = Refuse(429, "queue full", (("Retry-After", "2"),))
    page = visit()
    ask(page)
    alert = answer_of(page).get_by_role("alert")
    expect(alert).to_contain_text("try again in 2 s.")
    expect(alert).to_contain_text("try again now.")
    server.scripts["auto"] = verified(SKY)
    alert.get_by_role("button").click()
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Refuse(400, "max_tokens is 9 but allowed are 8"), "max_tokens is 9 but allowed are 8"),
        (Refuse(413, "too long"), "Shorten the message"),
        (Refuse(404, "no such model"), "does not know this model"),
        (Refuse(503, "loading"), "not ready"),
        ([text("Blue"), {"error": {"message": "the engine died", "type": "x", "param": None, "code": "e"}}], "the engine died"),
        ([text("Blue")], "The answer broke off."),
    ],
)
def test_an_error_says_what_to_do(visit, server, script, said):
    server.scripts["auto"] = script
    page = visit()
    ask(page)
    alert = answer_of(page).get_by_role("alert")
    expect(alert).to_contain_text(said)
    expect(alert.get_by_role("button", name="Try again")).to_be_visible()
    if isinstance(script, list):
        expect(answer_of(page).locator(".prose")).to_have_text("Blue")


def test_a_loading_server_is_waited_for(visit, server):
    server.health = "loading"
    page = visit()
    expect(page.locator("#banner")).to_contain_text("loading its model")
    server.health = "ok"
    expect(page.locator("#banner")).to_be_empty()
    expect(page.locator("#model")).to_have_text("demo")


# ---- for everyone


def test_by_keyboard_alone(visit, server):
    page = visit()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.get_by_label("Your message").focus()
    page.keyboard.type("a")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("b")
    page.keyboard.press("Enter")
    expect(answer_of(page).locator(".figures")).to_be_visible()
    assert server.requests[0]["messages"][0]["content"] == "a\nb"
    seen = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(16):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"))
    assert all(outline == "solid" for tag, outline in seen if tag != "BODY")
    assert {"A", "BUTTON", "TEXTAREA", "SUMMARY"} <= {tag for tag, _ in seen}


def test_controls_have_names_and_only_committed_text_is_spoken(visit, server):
    hold = Hold()
    server.scripts["auto"] = threshold(SKY, hold)
    page = visit()
    ask(page)
    expect(page.locator(".answer .slot").nth(5)).to_have_class(re.compile("decided"))
    assert page.locator(".answer").locator("xpath=ancestor-or-self::*[@aria-live or @role='log' or @role='status']").count() == 0
    nameless = """() => [...document.querySelectorAll('button, input, select, textarea, a, progress, dialog')].filter(node =>
        !(node.textContent.trim() || node.getAttribute('aria-label') || node.labels?.length || node.getAttribute('aria-labelledby')))
        .map(node => node.outerHTML)"""
    assert page.evaluate(nameless) == []
    hold.gate.set()


@pytest.mark.parametrize("path", ["", "#race"])
def test_it_fits_a_phone(visit, server, path):
    hold = Hold()
    long = ["x" * 90, *SKY, "\n\n```\n" + "y" * 200]
    server.scripts = {mode: threshold(long, hold) for mode in ("auto", "ar", "verified", "threshold")}
    page = visit(path, viewport=PHONE, has_touch=True, is_mobile=True)
    expect(page.locator("h1:visible")).to_be_visible()
    assert overflow(page) == 0
    ask(page) if path == "" else race(page)
    expect(page.locator(".answer .slot").nth(5)).to_have_class(re.compile("decided"))
    assert overflow(page) == 0
    hold.gate.set()
    expect(page.locator(".figures").last).to_be_visible()
    assert overflow(page) == 0
    small = """() => [...document.querySelectorAll('button, nav a')].filter(node => node.checkVisibility())
        .map(node => [node.textContent, node.getBoundingClientRect().height]).filter(([, height]) => height < 40)"""
    assert page.evaluate(small) == []


def test_the_list_of_chats_on_a_phone(visit):
    page = visit(viewport=PHONE)
    expect(page.get_by_role("button", name="New chat")).to_be_hidden()
    page.get_by_role("button", name="Chats").click()
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("button", name="New chat")).to_be_hidden()


def test_themes_follow_the_system_until_one_is_chosen(visit):
    page = visit(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(paper)
    assert light != dark
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    page.reload()
    assert page.evaluate(paper) == dark
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()


def test_nothing_moves_for_those_who_want_rest(visit):
    page = visit(reduced_motion="reduce")
    before = page.locator(".picture").inner_text()
    page.wait_for_timeout(1100)
    assert page.locator(".picture").inner_text() == before
    assert page.locator(".picture .slot").first.evaluate("node => getComputedStyle(node).transitionDuration") == "0s"
    moving = visit()
    start = moving.locator(".picture").inner_text()
    expect(moving.locator(".picture")).not_to_have_text(start)


CONTRAST = """(selectors) => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const layers = (node) => node ? [...layers(node.parentElement), getComputedStyle(node).backgroundColor] : [];
  const painted = (colours) => {
    canvas.fillStyle = 'white'; canvas.fillRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return selectors.map(([selector, property]) => {
    const node = [...document.querySelectorAll(selector)].filter((node) => node.checkVisibility()).at(-1);
    if (!node) return [selector, 0];
    const under = property === 'color' ? layers(node) : layers(node.parentElement);
    const [a, b] = [light(painted(under)), light(painted([...under, getComputedStyle(node)[property]]))];
    return [selector, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  });
}"""
READ = [".prose p", ".user .prose p", ".decided .token", ".settled .token", ".draft .token", ".decided .order", ".readout", ".running"]
READ += [".legend li span:last-child", "#send", "#new-chat", ".hint", ".chat-name", "nav a[aria-current=page]", "nav a[aria-current=false]"]
SEEN = [".masked", "#question"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(visit, server, scheme):
    """WCAG AA: 4.5 for text, 3 for the borders of slots and fields."""
    hold = Hold()
    sure = {"start": 0, "settled": 1, "slots": [slot("Blue", 1.0), slot(None), slot(" is", 1.0), slot(None)]}
    server.scripts["auto"] = [step(sure, 2, 1), text("Blue"), hold, text(" light"), end("threshold", 2, 2), "[DONE]"]
    page = visit(color_scheme=scheme, reduced_motion="reduce")
    ask(page)
    expect(page.locator(".answer .slot.decided")).to_be_visible()
    asked = [(selector, "color") for selector in READ] + [(selector, "borderTopColor") for selector in SEEN]
    for (selector, got), limit in zip(page.evaluate(CONTRAST, asked), [4.5] * len(READ) + [3] * len(SEEN), strict=True):
        assert got >= limit, f"{selector}: {got:.2f}"
    hold.gate.set()
    after = [(selector, "color") for selector in (".figure dt", ".figure dd", ".foot button", "summary")]
    expect(page.locator(".figures")).to_be_visible()
    assert min(got for _, got in page.evaluate(CONTRAST, after)) >= 4.5
    server.scripts["auto"] = Refuse(400, "no")
    ask(page)
    expect(page.get_by_role("alert")).to_be_visible()
    assert min(got for _, got in page.evaluate(CONTRAST, [(".problem strong", "color"), (".problem p", "color")])) >= 4.5


# ---- the files


def test_no_file_puts_html_into_the_page():
    for path in PAGE.iterdir():
        source = path.read_text()
        assert source.count("\n") <= 300, path
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"):
            rest = source.replace('xmlns="http://www.w3.org/2000/svg"', "").replace("https?:", "")
            assert forbidden not in rest, f"{path.name}: {forbidden}"
        if path.suffix == ".html":
            assert not re.search(r"<style|style=|\son\w+=|<script(?! src| type=\"module\" src)", source)


# ---- pictures


def picture(page, folder, name):
    page.wait_for_timeout(300)
    page.screenshot(path=folder / f"page-{name}.png")


@pytest.mark.parametrize(("name", "size", "scheme"), [("light", WIDE, "light"), ("dark", WIDE, "dark"), ("phone", PHONE, "light")])
def test_pictures(visit, server, tmp_path, name, size, scheme):
    """Screenshots; UNMASK_PICTURES names the folder to keep them in."""
    folder = Path(os.environ.get("UNMASK_PICTURES", tmp_path))
    holds = [Hold() for _ in range(4)]
    server.scripts = {"auto": threshold(SKY, holds[0]), "ar": ar(SKY, holds[1]), "verified": verified(SKY, holds[2])}
    server.scripts["threshold"] = threshold(SKY, holds[3])
    page = visit(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    expect(page.locator("#model")).to_have_text("demo")
    picture(page, folder, f"start-{name}")
    ask(page, "Why is the sky blue?")
    expect(page.locator(".answer .slot").nth(5)).to_have_class(re.compile("decided"))
    picture(page, folder, f"block-{name}")
    holds[0].gate.set()
    page.get_by_text("How it was written").click()
    picture(page, folder, f"answer-{name}")
    page.get_by_role("button", name="Settings").click()
    picture(page, folder, f"settings-{name}")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Race").click()
    race(page)
    expect(page.locator(".lane .slot.draft").first).to_be_visible()
    expect(page.locator(".lane .slot.decided").first).to_be_visible()
    page.locator("#race-status").scroll_into_view_if_needed()
    picture(page, folder, f"race-{name}")
    for hold in holds:
        hold.gate.set()
    expect(page.locator("#result table")).to_be_visible()
    page.locator("#result").scroll_into_view_if_needed()
    picture(page, folder, f"result-{name}")
