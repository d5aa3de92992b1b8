// An answer as paragraphs and code, built from text nodes alone: HTML in it is shown, never run.

import { el } from "./dom.js";

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|https?:\/\/[^\s<>"'`)\]]+)/;
const AFTER_LINK = /[.,;:!?]+$/;

/** Paragraphs and fenced code: [{kind: "paragraph" | "code", text}, …]; a fence that is still open counts. */
export function parts(text) {
  const found = [];
  let open = null;
  for (const line of text.split("\n")) {
    const fence = /^\s*```/.test(line);
    if (fence && open?.kind === "code") open = null;
    else if (fence) found.push((open = { kind: "code", lines: [] }));
    else if (open?.kind === "code") open.lines.push(line);
    else if (line.trim() === "") open = null;
    else if (open) open.lines.push(line);
    else found.push((open = { kind: "paragraph", lines: [line] }));
  }
  if (!open) found.push({ kind: "paragraph", lines: [""] });
  return found.map(({ kind, lines }) => ({ kind, text: lines.join("\n") }));
}

function link(address) {
  const end = address.match(AFTER_LINK)?.[0] ?? "";
  const href = address.slice(0, address.length - end.length);
  return [el("a", { href, rel: "noopener noreferrer nofollow", target: "_blank" }, href), end];
}

function inline(text) {
  return text.split(INLINE).flatMap((piece, n) => {
    if (n % 2 === 0) return [piece];
    if (piece.startsWith("`")) return [el("code", {}, piece.slice(1, -1))];
    if (piece.startsWith("**")) return [el("strong", {}, piece.slice(2, -2))];
    return link(piece);
  });
}

function nodeOf({ kind, text }) {
  if (kind === "code") return el("pre", { tabindex: "0", role: "region", "aria-label": "Code" }, el("code", {}, text));
  return el("p", {}, ...inline(text));
}

/** Shows a growing text; what has not changed keeps its nodes, so a selection in it survives. */
export class Prose {
  constructor() {
    this.element = el("div.prose");
    this.shown = [];
  }

  /** tail: an element to stand right behind the text (the block being written), or null. */
  show(text, tail = null) {
    const focused = tail?.contains(document.activeElement) ? document.activeElement : null;
    tail?.remove();
    const all = parts(text);
    const wanted = tail ? all : all.filter((part) => part.text !== "" || part.kind === "code");
    let same = 0;
    while (same < wanted.length && same < this.shown.length && wanted[same].kind === this.shown[same].kind && wanted[same].text === this.shown[same].text) same += 1;
    for (const { node } of this.shown.splice(same)) node.remove();
    for (const part of wanted.slice(same)) {
      const node = nodeOf(part);
      this.shown.push({ ...part, node });
      this.element.append(node);
    }
    if (tail) {
      const last = this.shown.at(-1);
      (last.kind === "code" ? last.node.firstChild : last.node).append(tail);
      focused?.focus({ preventScroll: true });
    }
  }
}
