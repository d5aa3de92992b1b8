"""Hostile text, spoilt storage, settings out of range, and servers in trouble."""

import pytest
from page_server import ANSWER, SKY, PageServer, Refuse, end, text, threshold, verified
from steps import answer_of, ask

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


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


def test_settings_travel_with_the_request_and_are_kept(visit, server):
    page = visit()
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings")
    expect(dialog.get_by_label("Threshold")).to_be_disabled()
    dialog.get_by_label("Mode").select_option("threshold")
    for label, value in [
        ("Threshold", "0.8"),
        ("Temperature", "0.7"),
        ("Top-p", "0.95"),
        ("Most tokens", "64"),
        ("Seed", "7"),
    ]:
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


def test_a_question_without_an_answer_can_be_asked_again_after_a_reload(visit, server):
    server.scripts["auto"] = Refuse(503, "not yet")
    page = visit()
    ask(page)
    expect(answer_of(page).get_by_role("alert")).to_be_visible()
    page.reload()
    server.scripts["auto"] = verified(SKY)
    page.get_by_role("button", name="Retry").click()
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)


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
    page.get_by_role("button", name="Enter the key").click()
    page.get_by_label("Key", exact=True).fill("another")
    page.get_by_role("button", name="Use the key").click()
    expect(answer_of(page).locator(".prose").first).to_have_text(ANSWER)


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
        (
            [text("Blue"), {"error": {"message": "the engine died", "type": "x", "param": None, "code": "e"}}],
            "the engine died",
        ),
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


def test_a_server_that_is_not_ready_is_waited_for(visit, server):
    server.health = "loading"
    page = visit()
    expect(page.locator("#banner")).to_contain_text("loading its model")
    server.health = "down"
    expect(page.locator("#banner")).to_contain_text("Look at its log")
    server.health = "ok"
    expect(page.locator("#banner")).to_be_empty()
    expect(page.locator("#model")).to_have_text("demo")
