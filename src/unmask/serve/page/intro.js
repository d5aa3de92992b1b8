// Ten seconds on block diffusion: a sentence, a small picture that moves, and the legend of slots.

import { BlockView } from "./block.js";
import { el } from "./dom.js";

const WORDS = ["Blue", " light", " scatters", " more", " than", " red"];
// The step that decides each slot: in the picture a block takes three forwards, word by word takes six.
const ORDER = [0, 1, 2, 1, 1, 2];
const SURE = [1, 0.97, 0.91, 0.72, 0.99, 0.94];
const MILLISECONDS = 900;
const REST = 3;

function slotsAt(step) {
  const masked = ORDER.map((order) => order > step);
  return WORDS.map((text, n) => {
    if (masked[n]) return { text: "", confidence: 0, order: 0, state: "masked", id: null };
    return { text, confidence: SURE[n], order: ORDER[n], state: ORDER[n] ? "decided" : "settled", id: n };
  });
}

/** The picture; it moves only where the reader allows motion. */
export function picture() {
  const view = new BlockView();
  const words = el("span");
  const forwards = [el("span.count"), el("span.count")];
  const draw = (step) => {
    const block = Math.min(step, 2);
    const word = Math.min(step + 1, WORDS.length);
    view.show(slotsAt(block));
    words.textContent = WORDS.slice(0, word).join("");
    [word, block + 1].forEach((n, row) => (forwards[row].textContent = `${n} forward${n === 1 ? "" : "s"}`));
  };
  let step = 1;
  draw(step);
  const element = el(
    "figure.picture",
    { inert: true, "aria-hidden": "true" },
    el("div.row", {}, el("span.name", {}, "word by word"), el("span.line", {}, words, el("span.caret")), forwards[0]),
    el("div.row", {}, el("span.name", {}, "block diffusion"), el("span.line", {}, view.element), forwards[1]),
    el("figcaption", {}, "An illustration, not this model’s output."),
  );
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
    const timer = setInterval(() => {
      step = (step + 1) % (WORDS.length + REST);
      draw(step);
      if (!element.isConnected) clearInterval(timer);
    }, MILLISECONDS);
  }
  return element;
}

const sample = (state, text, order, sure, words) => {
  const slot = el(`span.slot.${state}`, { "aria-hidden": "true" }, el("span.token", {}, text), el("span.order", {}, order));
  slot.style.setProperty("--sure", sure);
  return el("li", {}, slot, el("span", {}, words));
};

export function legend() {
  return el(
    "ul.legend",
    { "aria-label": "Legend of the block" },
    sample("masked", "", "", 0, "masked: still to be written"),
    sample("decided", "sure", "1", 0.99, "decided: the darker, the surer; the number is the step it came in"),
    sample("draft", "draft", "", 0.6, "drafted: may still be refused"),
    el("li", {}, el("span.edge", { "aria-hidden": "true" }), el("span", {}, "frame: the borders of the block")),
  );
}

export const SENTENCE =
  "Block diffusion writes a whole block of tokens at once: every slot starts as a mask, and each forward of the network fills the slots it is sure of, in any order.";
