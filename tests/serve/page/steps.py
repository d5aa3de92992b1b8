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
