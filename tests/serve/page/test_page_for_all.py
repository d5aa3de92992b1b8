"""By keyboard, on a phone, with a screen reader, in both themes; and what the files hold."""

import os
import re
from pathlib import Path

import pytest
from page_server import PAGE, SKY, Hold, Refuse, ar, end, slot, step, text, threshold, verified
from steps import answer_of, ask, race

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
PHONE = {"width": 375, "height": 720}
WIDE = {"width": 1280, "height": 860}


NAMELESS = """() => {
  const named = (node) => node.textContent.trim() || node.labels?.length
    || node.hasAttribute('aria-label') || node.hasAttribute('aria-labelledby');
  const controls = document.querySelectorAll('button, input, select, textarea, a, progress, dialog');
  return [...controls].filter((node) => !named(node)).map((node) => node.outerHTML);
}"""


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


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
        seen.append(
            page.evaluate("[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]")
        )
    assert all(outline == "solid" for tag, outline in seen if tag != "BODY")
    assert {"A", "BUTTON", "TEXTAREA", "SUMMARY"} <= {tag for tag, _ in seen}


def test_controls_have_names_and_only_committed_text_is_spoken(visit, server):
    hold = Hold()
    server.scripts["auto"] = threshold(SKY, hold)
    page = visit()
    ask(page)
    expect(page.locator(".answer .slot").nth(5)).to_have_class(re.compile("decided"))
    spoken = "xpath=ancestor-or-self::*[@aria-live or @role='log' or @role='status']"
    assert page.locator(".answer").locator(spoken).count() == 0
    assert page.evaluate(NAMELESS) == []
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
READ = [
    ".prose p",
    ".user .prose p",
    ".decided .token",
    ".settled .token",
    ".draft .token",
    ".decided .order",
    ".readout",
    ".running",
]
READ += [
    ".legend li span:last-child",
    "#send",
    "#new-chat",
    ".hint",
    ".chat-name",
    "nav a[aria-current=page]",
    "nav a[aria-current=false]",
]
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
    assert (
        min(got for _, got in page.evaluate(CONTRAST, [(".problem strong", "color"), (".problem p", "color")])) >= 4.5
    )


def test_no_file_puts_html_into_the_page():
    for path in PAGE.iterdir():
        source = path.read_text()
        assert source.count("\n") <= 300, path
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "http://",
            "https://",
        ):
            rest = source.replace('xmlns="http://www.w3.org/2000/svg"', "").replace("https?:", "")
            assert forbidden not in rest, f"{path.name}: {forbidden}"
        if path.suffix == ".html":
            assert not re.search(r"<style|style=|\son\w+=|<script(?! src| type=\"module\" src)", source)


def picture(page, folder, name):
    page.wait_for_timeout(300)
    page.screenshot(path=folder / f"page-{name}.png")


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("light", WIDE, "light"), ("dark", WIDE, "dark"), ("phone", PHONE, "light")]
)
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
