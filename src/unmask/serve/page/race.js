// The race: one prompt in several modes, side by side.

import { againButton, Answer, watchAgain } from "./answer.js";
import { complete } from "./api.js";
import { byId, button, el } from "./dom.js";
import { fixed } from "./figures.js";
import { legend, SENTENCE } from "./intro.js";
import { drain, problemBox } from "./problems.js";
import { current, inWords, modesOf, requestOf } from "./settings.js";

const LANES = {
  ar: "word by word: one forward, one token",
  verified: "drafts a block, checks it in one forward; its text is ar’s",
  threshold: "fills several slots at once, where it is sure",
};
const PLACES = ["first", "second", "third"];
const EXAMPLES = ["Explain in a few sentences why the sky is blue.", "Write a Python function that computes the n-th Fibonacci number with a loop."];

class Lane {
  constructor(mode, model) {
    this.mode = mode;
    this.answer = new Answer({ part: mode === "threshold" ? (model.unmask?.sub_block_size ?? 0) : 0 });
    this.speed = el("strong.speed", {}, "–");
    this.place = el("span.place", {}, "waiting");
    this.bar = el("progress", { max: "1", value: "0", "aria-label": `Tokens written in mode ${mode}` });
    this.element = el(
      "section.lane",
      { "aria-label": `Mode ${mode}` },
      el("h2", {}, mode, this.place),
      el("p.note", {}, LANES[mode]),
      el("p.meter", {}, this.speed, " tokens/s"),
      this.bar,
      this.answer.element,
    );
    this.fault = null;
    this.end = null;
  }

  async run(request, signal) {
    this.place.textContent = "running";
    this.bar.max = request.max_tokens ?? 256;
    this.fault = await drain(complete(request, signal), (event) => this.take(event));
  }

  take(event) {
    this.answer.take(event);
    if (event.kind === "step" && event.seconds > 0) this.show(event.tokens, event.tokens / event.seconds);
    if (event.kind === "end" && event.figures) {
      this.end = event.figures;
      this.show(this.end.completion_tokens, this.end.tokens_per_second);
    }
  }

  show(tokens, speed) {
    this.speed.textContent = fixed(speed, 1);
    this.bar.value = tokens;
  }

  finish(place, actions) {
    const said = this.end ? place : this.fault === "stopped" ? "stopped" : "failed";
    this.place.textContent = said;
    this.element.classList.toggle("won", place === PLACES[0] && Boolean(this.end));
    if (this.end) this.bar.value = this.bar.max;
    const problem = this.fault && this.fault !== "stopped" ? problemBox(this.fault, actions) : null;
    this.answer.end([problem]);
  }
}

export class Race {
  constructor(app) {
    this.app = app;
    this.form = byId("race-form");
    this.lanes = byId("lanes");
    this.result = byId("result");
    this.spoken = byId("race-status");
    this.prompt = this.form.elements.prompt;
    byId("race-intro").append(el("p.lead", {}, SENTENCE), legend());
    const examples = EXAMPLES.map((text) => el("li", {}, button(text, () => (this.prompt.value = text), { class: "example" })));
    byId("race-examples").append(...examples);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.start();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.running) this.form.requestSubmit();
    });
  }

  /** Offers the model's modes. */
  fit(model) {
    const modes = ["ar", "verified", "threshold"].filter((mode) => modesOf(model).includes(mode));
    const boxes = modes.map((mode) => el("label", {}, el("input", { type: "checkbox", name: "mode", value: mode, checked: true }), mode));
    byId("race-modes").replaceChildren(...boxes);
    const alone = modes.length < 2;
    byId("race-alone").hidden = !alone;
    this.form.hidden = alone;
    this.describe();
  }

  describe() {
    byId("race-settings").textContent = `Each answers with the settings: ${inWords(current())}.`;
  }

  async start() {
    if (!this.app.model) await this.app.start();
    if (!this.app.model || this.running) return;
    const { model } = this.app;
    const text = this.prompt.value;
    const modes = [...this.form.querySelectorAll("[name=mode]:checked")].map((box) => box.value);
    this.say(!text.trim() ? "Write a prompt first." : modes.length < 2 ? "Choose at least two modes." : "");
    if (this.spoken.textContent) return;
    const run = new AbortController();
    this.busy(run);
    const together = this.form.elements.order.value === "together";
    const racers = modes.map((mode) => new Lane(mode, model));
    this.say(`${modes.length} modes, ${together ? "at once" : "one after another"} …`);
    this.result.replaceChildren();
    this.lanes.replaceChildren(...racers.map((lane) => lane.element));
    const narrow = matchMedia("(max-width: 52rem)").matches;
    (narrow ? this.lanes : byId("race-choices")).scrollIntoView({ block: "start" });
    const messages = [{ role: "user", content: text }];
    await this.drive(racers, together, (lane) => lane.run(requestOf(current(), model, messages, lane.mode), run.signal));
    this.busy(null);
    this.conclude(racers, together);
  }

  /** Runs all lanes, at once or one by one; the place of each is that of its end, or of its seconds. */
  async drive(racers, together, run) {
    const retry = () => this.start();
    const actions = { retry, askKey: () => this.app.askKey(retry) };
    const arrived = [];
    const one = async (lane) => {
      await run(lane);
      if (lane.end) arrived.push(lane);
      lane.finish(together && lane.end ? PLACES[arrived.length - 1] : "done", actions);
    };
    if (together) await Promise.all(racers.map(one));
    else for (const lane of racers) await one(lane);
    if (together) return;
    arrived.sort((a, b) => a.end.seconds - b.end.seconds).forEach((lane, n) => lane.finish(PLACES[n], actions));
  }

  conclude(racers, together) {
    const done = racers.filter((lane) => lane.end);
    if (done.length < 2) return this.say(racers.some((lane) => lane.fault === "stopped") ? "The race was stopped." : "The race did not finish.");
    const first = done.find((lane) => lane.place.textContent === PLACES[0]);
    const later = PLACES.slice(1).flatMap((place) => done.filter((lane) => lane.place.textContent === place)).map((lane) => lane.mode);
    this.say(`${first.mode} ${together ? "finished first" : "was the fastest"}, then ${later.join(", then ")}.`);
    this.result.replaceChildren(table(done, together), el("p", {}, againButton(() => this.again(racers))));
  }

  async again(racers) {
    if (this.running) return;
    const run = new AbortController();
    this.busy(run);
    await watchAgain(racers.map((lane) => lane.answer), run.signal);
    racers.forEach((lane) => lane.answer.end());
    this.busy(null);
  }

  say(text) {
    this.spoken.textContent = text;
  }

  stop() {
    this.running?.abort();
  }

  busy(run) {
    this.running = run;
    byId("race-start").textContent = run ? "Stop" : "Start the race";
    byId("race-start").classList.toggle("stop", Boolean(run));
  }
}

/** Totals of each mode; speed and text are compared with mode ar's, where it ran. */
function table(lanes, together) {
  const ar = lanes.find((lane) => lane.mode === "ar");
  const row = (name, value) => el("tr", {}, el("th", { scope: "row" }, name), ...lanes.map((lane) => el("td", {}, value(lane.end, lane))));
  const rows = [
    row("seconds", (end) => fixed(end.seconds, 2)),
    row("tokens", (end) => String(end.completion_tokens)),
    row("tokens/s", (end) => fixed(end.tokens_per_second, 1)),
    row("forwards", (end) => String(end.forwards)),
    row("tokens/forward", (end) => fixed(end.tokens_per_forward, 2)),
  ];
  if (ar) {
    const same = (lane) => (lane.answer.text === ar.answer.text ? "same" : "differs");
    rows.push(row("speed to ar", (end) => `${fixed(end.tokens_per_second / ar.end.tokens_per_second, 2)} ×`));
    rows.push(row("text to ar", (_, lane) => (lane === ar ? "–" : same(lane))));
  }
  const note = together ? "They shared the machine: who is ahead counts, not the speed itself." : "Each had the machine to itself.";
  const heads = lanes.map((lane) => el("th", { scope: "col" }, lane.mode));
  return el("table", {}, el("caption", {}, note), el("thead", {}, el("tr", {}, el("td"), ...heads)), el("tbody", {}, ...rows));
}
