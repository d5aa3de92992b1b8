// One answer while it is written and after: its text, the block in its place, running counts, figures, its story.

import { BlockView } from "./block.js";
import { button, el } from "./dom.js";
import { counts, figuresOf } from "./figures.js";
import { Prose } from "./text.js";
import { Trace, overlap } from "./trace.js";

const HINT = "Hover, tap or tab to a slot to see how sure the network is; arrow keys go on from it.";

export class Answer {
  /** part: the sub-block size where it shows, else 0; blocks: whether to draw the block. */
  constructor({ part = 0, blocks = true } = {}) {
    this.part = part;
    this.blocks = blocks;
    this.prose = new Prose();
    this.note = el("p.readout", { hidden: true }, HINT);
    this.running = el("p.running");
    this.after = el("div.after");
    this.view = new BlockView({ part, onpoint: (text) => (this.note.textContent = text ?? HINT) });
    this.element = el("div.answer", {}, this.prose.element, this.note, this.running, this.after);
    this.events = [];
    this.reset();
  }

  reset() {
    Object.assign(this, { text: "", trace: new Trace(), last: null, writing: true, reason: null, figures: null });
    this.running.textContent = "waiting for the first token …";
    this.after.replaceChildren();
    this.draw();
  }

  take(event, keep = true) {
    if (keep) this.events.push(event);
    if (event.kind === "text") this.text += event.text;
    if (event.kind === "step") {
      this.last = event;
      this.trace.see(event.block);
    }
    if (event.kind === "end") Object.assign(this, { reason: event.reason, figures: event.figures });
    this.drawSoon();
  }

  /** Nothing more comes: complete, stopped or failed. */
  end(extra = []) {
    this.writing = false;
    this.draw();
    this.running.textContent = "";
    if (!this.figures && this.last) this.running.textContent = counts(this.last);
    const figures = this.figures ? figuresOf(this.figures, this.reason) : null;
    const told = this.figures ? this.trace.story(this.text, this.figures.completion_tokens) : null;
    const story = told ? storyOf(told, this.part, this.figures.mode) : null;
    this.after.replaceChildren(...[figures, story, ...extra].filter((node) => node));
  }

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = null;
    const slots = this.writing && this.blocks ? this.trace.slots() : [];
    this.note.hidden = !slots.length;
    this.view.show(slots);
    const settled = slots.filter((slot) => slot.state === "settled").map((slot) => slot.text);
    const before = this.text.slice(0, this.text.length - overlap(this.text, settled.join("")));
    this.prose.show(slots.length ? before : this.text, slots.length ? this.view.element : null);
    this.element.classList.toggle("writing", this.writing);
    if (this.writing && this.last) this.running.textContent = counts(this.last);
  }
}

const FRAMES = {
  verified: "A frame begins with the token that a check wrote itself; the shaded ones behind it were drafted and kept.",
  threshold: "A frame is a block; the numbers are the steps in which its slots were decided.",
};

/** Every block of a complete answer, with what was decided when. */
function storyOf(story, part, mode) {
  const readout = el("p.readout", {}, HINT);
  const onpoint = (text) => (readout.textContent = text ?? HINT);
  const views = story.blocks.map((slots, n) => {
    const view = new BlockView({ part, label: `Block ${n + 1}`, onpoint });
    view.show(slots.map((slot) => ({ ...slot, state: slot.order ? "decided" : "settled" })));
    return view.element;
  });
  const body = el("div.prose.blocks", {}, ...views.flatMap((view) => [view, " "]), story.rest);
  const note = el("p.why", {}, FRAMES[mode] ?? FRAMES.threshold);
  const kind = mode === "verified" ? "details.story.drafts" : "details.story"; // a draft is one step, so no numbers
  return el(kind, {}, el("summary", {}, "How it was written, block by block"), body, note, readout);
}

const MILLISECONDS = 220;

/** Shows answers once more at one pace: each forward takes equally long, in all of them. */
export async function watchAgain(answers, signal) {
  const last = Math.max(...answers.map((answer) => answer.events.findLast((event) => event.kind === "step")?.forwards ?? 0));
  const queues = answers.map((answer) => [...answer.events]);
  answers.forEach((answer) => answer.reset());
  for (let forwards = 0; forwards <= last && !signal.aborted; forwards += 1) {
    answers.forEach((answer, n) => {
      while (queues[n].length && !(queues[n][0].kind === "step" && queues[n][0].forwards > forwards)) {
        answer.take(queues[n].shift(), false);
      }
    });
    await new Promise((resolve) => setTimeout(resolve, MILLISECONDS));
  }
  answers.forEach((answer, n) => queues[n].forEach((event) => answer.take(event, false)));
}

export const againButton = (onclick) => button("Watch again, slowly", onclick, { class: "quiet" });
