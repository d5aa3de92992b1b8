"""The page on the real server, over a tiny random network whose text is noise."""

import pytest
from serving import running, tiny
from steps import answer_of, ask, race

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


@pytest.fixture(scope="module")
def live():
    with running(tiny()) as server:
        server.url += "/"
        yield server


def told(page):
    return answer_of(page).locator(".figures dd").all_text_contents()


@pytest.mark.parametrize("mode", ["ar", "verified", "threshold"])
def test_a_chat_in_every_mode(visit, live, mode):
    page = visit()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Mode").select_option(mode)
    page.get_by_label("Most tokens").fill("24")
    page.get_by_role("button", name="Done").click()
    ask(page)
    expect(answer_of(page).locator(".figures")).to_be_visible()
    figures = told(page)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 24}
    choice = live.http.post("/v1/chat/completions", json=body | {"mode": mode}).json()["choices"][0]
    assert figures[0] == mode
    assert figures[2:] == [
        str(choice["unmask"]["forwards"]),
        f"{choice['unmask']['tokens_per_forward']:.2f}",
        str(choice["unmask"]["completion_tokens"]),
    ]
    kept = page.evaluate("JSON.parse(localStorage.getItem(Object.keys(localStorage).find(k => k.includes('chat.'))))")
    assert kept["messages"][-1]["content"] == choice["message"]["content"]


def test_a_race(visit, live):
    page = visit("#race")
    race(page)
    expect(page.locator("#result thead th")).to_have_text(["ar", "verified", "threshold"], timeout=20000)
    expect(page.locator("#result tbody tr").last.locator("td").nth(1)).to_have_text("same")


def test_what_the_server_refuses_is_shown(visit, live):
    page = visit()
    ask(page, "long " * 400)
    expect(answer_of(page).get_by_role("alert")).to_contain_text("tokens")
