// The few figures one looks at first, and the last hour in rows.

import { byId, el, say } from "./dom.js";
import { brief, bytes, clock, count, percent, seconds, sum } from "./figures.js";

// Samples: five minutes, and a minute.
const FIVE_MINUTES = 30;
const MINUTE = 6;

const TILES = [
  ["Hit rate", "of tokens, 5 min", ({ history }) => rate(history, "delivered", FIVE_MINUTES)],
  ["Requests", "a second, 1 min", ({ history }) => {
    const spent = last(history, "seconds", MINUTE);
    return spent ? (last(history, "requests", MINUTE) / spent).toFixed(1) : "–";
  }],
  ["First token", "mean, 5 min", ({ history }) => {
    const begun = last(history, "first_tokens", FIVE_MINUTES);
    return begun > 0 ? seconds(last(history, "first_token_s", FIVE_MINUTES) / begun) : "–";
  }],
  ["In flight", "of this router", ({ fleet }) => count(sum(fleet.replicas.map((r) => r.in_flight)))],
  ["Waiting", "router and replicas", ({ fleet }) => count(fleet.router.queued + sum(fleet.replicas.map((r) => r.waiting)))],
  ["Replicas live", "of those known", ({ fleet }) => `${live(fleet).length} of ${fleet.replicas.length}`, ({ fleet }) => live(fleet).length < fleet.replicas.length],
  ["Mirrors in step", "of live replicas", ({ fleet }) => `${streaming(fleet).length} of ${live(fleet).length}`, ({ fleet }) => streaming(fleet).length < live(fleet).length],
  ["Memory of mirrors", "of the bound", ({ fleet }) => `${percent(fleet.router.index_bytes, fleet.router.index_max_bytes)}`],
];

const live = (fleet) => fleet.replicas.filter((r) => r.live);
const streaming = (fleet) => live(fleet).filter((r) => r.mirror === "streaming");
const last = (history, name, samples) => sum(history[name].slice(-samples));
const rate = (history, name, samples) => percent(last(history, name, samples), last(history, "prompt", samples));

export class Now {
  constructor() {
    this.tiles = TILES.map(([name, of]) => {
      const value = el("dd");
      byId("now").append(el("div", {}, el("dt", {}, name), value, el("small", {}, of)));
      return value;
    });
  }

  show(fleet, history) {
    const { router } = fleet;
    TILES.forEach(([, , read, isWorrying], n) => {
      say(this.tiles[n], read({ fleet, history }));
      this.tiles[n].className = isWorrying?.({ fleet, history }) ? "warn" : "";
    });
    say(byId("router"), `${router.version}, policy ${router.policy}, up ${seconds(router.up_s)}, `
      + `mirrors ${bytes(router.index_bytes)} of ${bytes(router.index_max_bytes)}`);
    this.rows(history);
  }

  // Five minutes a row, the newest first.
  rows(history) {
    const rows = [];
    for (let end = history.at_s.length; end > 0; end -= FIVE_MINUTES) {
      const of = (name) => sum(history[name].slice(Math.max(0, end - FIVE_MINUTES), end));
      const share = (name) => percent(of(name), of("prompt"));
      const cells = [
        count(of("requests")), brief(of("prompt")), share("available"), share("captured"), share("delivered"),
        of("first_tokens") > 0 ? seconds(of("first_token_s") / of("first_tokens")) : "–",
      ];
      rows.push(el("tr", {}, el("th", { scope: "row" }, clock(history.at_s[end - 1])), ...cells.map((text) => el("td", {}, text))));
    }
    byId("hour").tBodies[0].replaceChildren(...rows);
  }
}
