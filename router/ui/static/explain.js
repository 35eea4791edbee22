// The form that asks where a prompt would go, and why.

import { post, Refused } from "./ask.js";
import { byId, el, say } from "./dom.js";
import { count } from "./figures.js";

const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

// All figures in tokens unless the name says otherwise.
const COLUMNS = [
  ["Matched", (c) => count(c.matched_tokens), "tokens of the prompt that are cached there, by its deltas"],
  ["Expected", (c) => count(c.expected_tokens), "those, and what prompts in flight will have cached"],
  ["Ahead", (c) => tenth.format(c.ahead_tokens), "tokens of prefill it would do before this prompt"],
  ["Delayed requests", (c) => tenth.format(c.delayed_requests), "waiting requests that this one would delay"],
  ["Decode pressure", (c) => tenth.format(c.decode_pressure_tokens), "what its running requests take meanwhile, in tokens"],
  ["Cost", (c) => (c.eligible ? tenth.format(c.cost_tokens) : "–"), "in tokens: the lowest is picked, or one within a hundredth of it"],
];

export class Explain {
  constructor(failed) {
    this.failed = failed;
    this.form = byId("explain");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
  }

  offer(replicas) {
    const select = this.form.elements.model;
    const models = [...new Set(replicas.filter((r) => !r.refusal).map((r) => r.model))].sort();
    if (models.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
    const chosen = select.value;
    select.replaceChildren(...models.map((model) => el("option", { value: model, selected: model === chosen }, model)));
    select.closest("label").hidden = models.length < 2;
  }

  body() {
    const { kind, prompt, model, extra_key, cache_salt } = this.form.elements;
    const names = { model: model.value, extra_key: extra_key.value, cache_salt: cache_salt.value };
    if (kind.value !== "tokens") return { ...names, text: prompt.value, chat: kind.value === "chat" };
    const tokens = prompt.value.split(/[\s,[\]]+/).filter(Boolean);
    const wrong = tokens.find((token) => !/^\d+$/.test(token));
    if (wrong !== undefined) throw new Refused(`expected whole numbers such as 1, 15, 9, got "${wrong.slice(0, 20)}"`, 400);
    return { ...names, tokens: tokens.map(Number) };
  }

  async ask() {
    const mine = (this.asked = {});
    const verdict = byId("verdict");
    verdict.className = "";
    say(verdict, "Asking …");
    byId("candidates").replaceChildren();
    try {
      const explained = await post("explain", this.body());
      if (this.asked !== mine) return;
      say(verdict, this.verdict(explained));
      byId("candidates").replaceChildren(this.table(explained));
    } catch (error) {
      if (!(error instanceof Refused)) this.failed(error);
      if (this.asked !== mine) return;
      verdict.className = "problem";
      say(verdict, error.message);
    }
  }

  // The prompt and what was said of it, which are nobody's once this one is signed out.
  forget() {
    this.asked = null;
    this.form.reset();
    byId("verdict").className = "";
    say(byId("verdict"), "");
    byId("candidates").replaceChildren();
  }

  verdict({ pick, refusal }) {
    if (!pick) return "No replica can take this prompt now.";
    if (refusal) return `${pick.replica_id} would refuse it: ${refusal}.`;
    return `${pick.replica_id} (${pick.reason}): ${count(pick.matched_tokens)} of ${count(pick.prompt_tokens)} prompt tokens are cached there.`;
  }

  table({ pick, candidates }) {
    const heads = [el("th", { scope: "col" }, "Replica"), ...COLUMNS.map(([name, , about]) => el("th", { scope: "col", title: about }, name))];
    const rows = candidates.map((candidate) => {
      const picked = candidate.replica_id === pick?.replica_id;
      const name = el("th", { scope: "row" }, el("b", {}, candidate.replica_id),
        picked ? el("small", { class: "good" }, "picked") : candidate.objection ? el("small", { class: "warn" }, candidate.objection) : null);
      return el("tr", { class: picked ? "picked" : null }, name, ...COLUMNS.map(([, show]) => el("td", {}, show(candidate))));
    });
    return el("table", { "aria-label": "What each replica would cost" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows));
  }
}
