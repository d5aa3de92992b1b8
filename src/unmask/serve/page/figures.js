// What an answer cost, in words and numbers.

import { el } from "./dom.js";

export const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** The running counts of a step event. */
export function counts({ tokens, forwards, seconds }) {
  const speed = seconds > 0 ? tokens / seconds : Number.NaN;
  return `${plural(tokens, "token")} · ${plural(forwards, "forward")} · ${fixed(speed, 1)} tokens/s`;
}

function kinds(byKind) {
  const named = Object.entries(byKind ?? {}).filter(([, n]) => n);
  return named.map(([kind, n]) => `${n} ${kind}`).join(", ");
}

function figure(name, value, title = null) {
  return el("div.figure", { title }, el("dt", {}, name), el("dd", {}, value));
}

/** The figures under a complete answer; reason: its finish_reason. */
export function figuresOf(figures, reason = null) {
  const list = el(
    "dl.figures",
    {},
    figure("mode", figures.mode),
    figure("tokens/s", fixed(figures.tokens_per_second, 1), `${fixed(figures.seconds, 2)} seconds`),
    figure("forwards", String(figures.forwards), kinds(figures.forwards_by_kind) || null),
    figure("tokens/forward", fixed(figures.tokens_per_forward, 2)),
    figure("tokens", String(figures.completion_tokens), `after a prompt of ${figures.prompt_tokens}, ${figures.cached_tokens ?? 0} of them remembered`),
  );
  const why = figures.why ? el("p.why", {}, `Why ${figures.mode}: ${figures.why}`) : null;
  const cut = reason === "length" ? el("p.why", {}, "It ends here because the limit of tokens was reached; settings change it.") : null;
  return el("div.outcome", {}, list, why, cut);
}
