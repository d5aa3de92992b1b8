"""An answer on the page: its text, its block, its figures, its past."""

import re

import pytest
from page_server import ANSWER, SKY, Hold, ar, end, slot, step, text, threshold, verified
from steps import answer_of, ask, watch_again

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


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
    server.scripts["auto"] = [
        step(block, 1, 1),
        text("Blue"),
        first,
        step(later, 2, 2),
        text(" light"),
        second,
        "[DONE]",
    ]
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
    watch_again(page, forwards=3)
    shown = page.locator(".answer > .prose .slot.draft .token")
    expect(shown).to_have_text([" light", " is", " scattered", " wrong", " guess"])
    page.keyboard.press("Escape")
    page.clock.resume()
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    expect(page.get_by_role("button", name="Watch again")).to_be_visible()


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


JUNK = ['"text"', "{", "[1]", '{"id": "x", "title": "t", "messages": [{}]}', '{"system": 5, "mode": null}']


def test_spoilt_storage_is_passed_over(visit, server):
    page = visit()
    put = "junk => ['unmask.chat.x', 'unmask.settings'].forEach(name => localStorage.setItem(name, junk))"
    for junk in JUNK:
        page.evaluate(put, junk)
        page.reload()
        expect(page.locator("#model")).to_have_text("demo")
    ask(page)
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    assert (server.requests[0]["mode"], server.requests[0]["max_tokens"]) == ("auto", 256)


def test_full_storage_is_said_and_the_chat_goes_on(visit):
    page = visit()
    page.evaluate(
        "() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') } }"
    )
    ask(page)
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)
    expect(page.locator("#notice")).to_contain_text("not kept")
    expect(page.locator(".chat-name")).to_have_count(1)
