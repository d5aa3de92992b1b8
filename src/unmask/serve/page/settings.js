// How to decode: the form of the settings, what is kept of it, and what of it a request carries.

import { byId } from "./dom.js";
import { keepSettings, settings } from "./store.js";

export const DEFAULTS = { mode: "auto", threshold: "", temperature: "0", top_p: "1", max_tokens: "256", seed: "", system: "", blocks: true };
const MODES = {
  auto: "auto: the server chooses",
  ar: "ar: word by word",
  verified: "verified: drafts, then checks",
  threshold: "threshold: where it is sure",
};

export const current = () => settings(DEFAULTS);

/** The body of a request; mode: instead of the settings' own. */
export function requestOf(chosen, model, messages, mode = chosen.mode) {
  const system = chosen.system.trim() ? [{ role: "system", content: chosen.system }] : [];
  const body = {
    model: model.id,
    messages: [...system, ...messages.map(({ role, content }) => ({ role, content }))],
    mode: modesOf(model).includes(mode) ? mode : "auto",
    temperature: Number(chosen.temperature),
    provisional: true,
  };
  if (chosen.max_tokens) body.max_tokens = Number(chosen.max_tokens);
  if (Number(chosen.top_p) !== 1) body.top_p = Number(chosen.top_p);
  if (chosen.seed !== "") body.seed = Number(chosen.seed);
  if (chosen.threshold !== "" && body.mode === "threshold") body.threshold = Number(chosen.threshold);
  return body;
}

export const modesOf = (model) => model?.unmask?.modes ?? ["ar"];

/** A line that says what answers are asked with. */
export function inWords(chosen) {
  const warm = Number(chosen.temperature) > 0 ? `temperature ${chosen.temperature}, top-p ${chosen.top_p}` : "temperature 0";
  const seed = chosen.seed === "" ? "" : `, seed ${chosen.seed}`;
  return `${warm}${seed}, at most ${chosen.max_tokens || "as many as fit"} tokens`;
}

/** The dialog; onchange: called when something was changed. */
export class Settings {
  constructor(onchange) {
    this.dialog = byId("settings");
    this.form = byId("settings-form");
    this.onchange = onchange;
    this.form.addEventListener("input", () => this.read());
    this.form.addEventListener("submit", () => this.read());
    byId("settings-reset").addEventListener("click", () => this.write({ ...DEFAULTS }));
    this.fill(current());
  }

  open() {
    this.fill(current());
    this.dialog.showModal();
  }

  /** Offers the model's modes and limits. */
  fit(model) {
    const modes = ["auto", "ar", "verified", "threshold"].filter((mode) => mode === "auto" || modesOf(model).includes(mode));
    this.form.elements.mode.replaceChildren(...modes.map((mode) => new Option(MODES[mode], mode)));
    if (model.unmask?.max_context) this.form.elements.max_tokens.max = model.unmask.max_context;
    this.fill(current());
  }

  fill(chosen) {
    for (const [name, value] of Object.entries(chosen)) {
      const field = this.form.elements[name];
      if (field?.type === "checkbox") field.checked = value;
      else if (field) field.value = value;
    }
    if (!this.form.elements.mode.value) this.form.elements.mode.value = "auto";
    this.free();
  }

  /** A threshold has an effect in its own mode only. */
  free() {
    this.form.elements.threshold.disabled = this.form.elements.mode.value !== "threshold";
  }

  read() {
    this.free();
    if (!this.form.checkValidity()) return;
    const value = (field) => (field.type === "checkbox" ? field.checked : field.value);
    keepSettings(Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, value(this.form.elements[name])])));
    this.onchange();
  }

  write(chosen) {
    keepSettings(chosen);
    this.fill(chosen);
    this.onchange();
  }
}
