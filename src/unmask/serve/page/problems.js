// What went wrong, in one sentence, and what to do about it in another.

import { isAbort } from "./api.js";
import { button, el } from "./dom.js";

const ADVICE = {
  0: ["The server does not answer.", "Start it with “unmask serve”, or check the address, and try again."],
  401: ["This server wants a key.", "Enter the one it was started with (--api-key)."],
  404: ["The server does not know this model.", "Reload the page to see what it serves."],
  413: ["This is too long for the server.", "Shorten the message or start a new chat."],
  503: ["The server is not ready.", "It may still be loading the model; try again in a moment."],
};

/** {title, advice, needs: "key" | "wait" | null, wait: seconds or null}. */
export function explain(fault) {
  const { status, code, message, retryAfter } = fault;
  if (status === undefined) return { title: "The page did not understand the server.", advice: String(message ?? fault), needs: null, wait: null };
  if (status === 429) {
    return { title: "The server is busy.", advice: "Others are waiting too; try again", needs: "wait", wait: retryAfter ?? 5 };
  }
  if (status === 200) {
    const what = code === "cut" ? "Try again; if it happens again, look at the server's log." : `The server says: ${message}.`;
    return { title: "The answer broke off.", advice: what, needs: null, wait: null };
  }
  const [title, advice] = ADVICE[status] ?? ["The server refused this.", "Change the settings or the message, and try again."];
  const said = [0, 401, 503].includes(status) ? "" : ` The server says: ${message}.`;
  return { title, advice: advice + said, needs: status === 401 ? "key" : null, wait: null };
}

/** A box that says so, with the button that helps; retry and askKey are called with nothing. */
export function problemBox(fault, { retry, askKey }) {
  const { title, advice, needs, wait } = explain(fault);
  const text = el("p", {}, advice);
  const action = needs === "key" ? button("Enter the key", askKey) : button("Try again", retry);
  const box = el("div.problem", { role: "alert" }, el("strong", {}, title), text, action);
  if (needs === "wait") countDown(text, advice, wait);
  return box;
}

function countDown(element, advice, seconds) {
  const until = Date.now() + seconds * 1000;
  const tick = () => {
    const left = Math.ceil((until - Date.now()) / 1000);
    element.textContent = left > 0 ? `${advice} in ${left} s.` : `${advice} now.`;
    if (left > 0) setTimeout(tick, 250);
  };
  element.setAttribute("aria-live", "off");
  tick();
}

/** Runs over the events of an answer; returns the fault that ended it, "stopped", or null where it is complete. */
export async function drain(events, take) {
  try {
    for await (const event of events) take(event);
    return null;
  } catch (fault) {
    return isAbort(fault) ? "stopped" : fault;
  }
}
