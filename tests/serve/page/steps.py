"""What a reader does on the page."""


def ask(page, question="Why is the sky blue?"):
    page.get_by_label("Your message").fill(question)
    page.get_by_label("Your message").press("Enter")


def answer_of(page):
    return page.locator(".message.assistant").last


def race(page, order="at once"):
    page.get_by_label("Prompt", exact=True).fill("Why is the sky blue?")
    page.get_by_label(order, exact=True).check()
    page.get_by_role("button", name="Start the race").click()


def watch_again(page, forwards):
    """Starts the replay with the page's clock in our hands, and lets it pass that many forwards: it stays there."""
    again = page.get_by_role("button", name="Watch again")
    again.wait_for()
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    again.click()
    page.clock.run_for(forwards * 220 + 50)
