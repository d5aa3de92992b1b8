"""Take plots out of a report's page, as pictures for these pages.

    python docs/report_plots.py runs/sweep/report.html "Score by threshold" "Tokens per second by threshold"

Each goes to docs/images/NAME.svg, its name made of its title; on white, since a picture does not know its page's
colours.
"""

import re
import sys
from pathlib import Path


def plots(page: str) -> dict[str, str]:
    """The page's plots by title."""
    found = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    return {re.search(r'aria-label="([^:"]+)', plot)[1]: plot for plot in found}


def main(report: str, *titles: str) -> None:
    found = plots(Path(report).read_text(encoding="utf-8"))
    for title in titles:
        if title not in found:
            sys.exit(f"error: {report} has no plot '{title}'; it has {', '.join(found)}")
        name = re.sub(r"\W+", "-", title.lower()).strip("-")
        style = 'xmlns="http://www.w3.org/2000/svg" style="background:#fff;color:#24292f" '
        plot = re.sub(r' xmlns="[^"]*"| style="[^"]*"', "", found[title].split(">", 1)[0]) + ">"
        rest = found[title].split(">", 1)[1]
        (Path(__file__).parent / "images" / f"{name}.svg").write_text(
            plot.replace("<svg ", f"<svg {style}") + rest + "\n"
        )
        print(f"docs/images/{name}.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
