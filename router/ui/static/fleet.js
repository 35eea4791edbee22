// The fleet as a table: a row a replica, kept between refreshes, so that what has the focus keeps it.

import { byId, el, say } from "./dom.js";
import { brief, count, percent, seconds } from "./figures.js";

// Rows beyond these are found by the filter.
const MOST = 200;
// A filter is shown from so many replicas on.
const MANY = 12;

const hits = (part, all) => (all ? part / all : -1);

// Heading, what to sort by, what to show, and what that says at length.
const COLUMNS = [
  ["Replica", (r) => r.id, (r) => r.id, (r) => `${r.address}, model ${r.model}`],
  ["State", (r) => r.state, (r) => r.state, (r) => r.refusal],
  ["Mirror", (r) => r.mirror, (r) => r.mirror, (r) => `epoch ${r.epoch}, batch ${count(r.seq)}, ${count(r.gaps)} gaps, ${count(r.snapshots)} snapshots`],
  ["Breaker", (r) => r.breaker, (r) => r.breaker.replace("_", " "), (r) => `opened ${count(r.breaker_openings)} times`],
  ["Blocks", (r) => r.blocks, (r) => count(r.blocks), (r) => `${count(r.cached_tokens)} tokens`],
  ["Hits, 5 min", (r) => hits(r.recent_delivered_tokens, r.recent_prompt_tokens), (r) => percent(r.recent_delivered_tokens, r.recent_prompt_tokens),
    (r) => `${count(r.recent_delivered_tokens)} of ${count(r.recent_prompt_tokens)} prompt tokens`],
  ["Hits, all", (r) => hits(r.delivered_tokens, r.prompt_tokens), (r) => percent(r.delivered_tokens, r.prompt_tokens),
    (r) => `available ${percent(r.available_tokens, r.prompt_tokens)}, captured ${percent(r.captured_tokens, r.prompt_tokens)}, delivered ${percent(r.delivered_tokens, r.prompt_tokens)}`],
  ["Requests", (r) => r.requests, (r) => brief(r.requests), (r) => `${count(r.requests)} completed`],
  ["In flight", (r) => r.in_flight, (r) => count(r.in_flight), () => "of this router"],
  ["Running", (r) => r.running, (r) => count(r.running), () => "of all routers"],
  ["Waiting", (r) => r.waiting, (r) => count(r.waiting), () => "of all routers"],
  ["To compute", (r) => r.pending_tokens, (r) => brief(r.pending_tokens), (r) => `${count(r.pending_tokens)} prompt tokens`],
  ["Slots in use", (r) => used(r), (r) => percent(used(r), r.total_slots), (r) => `${count(r.free_slots)} free and ${count(r.evictable_slots)} evictable of ${count(r.total_slots)}`],
  ["Delta lag", (r) => r.lag_s, (r) => seconds(r.lag_s), () => "from Redis' time stamp on the last batch to its arrival"],
];
const used = (r) => r.total_slots - r.free_slots - r.evictable_slots;

const tone = (r) => {
  if (r.refusal || !r.live) return "bad";
  return r.state === "live" && r.mirror === "streaming" ? "good" : "warn";
};
const key = (r) => `${r.id}\n${r.address}`;

export class FleetTable {
  constructor() {
    this.body = byId("fleet").tBodies[0];
    this.rows = new Map();
    this.replicas = [];
    this.sorted = { column: 0, down: false };
    this.filter = byId("filter");
    this.filter.querySelector("input").addEventListener("input", () => this.draw());
    this.heads = COLUMNS.map(([name], n) => {
      const button = el("button", { type: "button", onclick: () => this.sort(n) }, name);
      return el("th", { scope: "col", role: "columnheader" }, button);
    });
    byId("fleet").tHead.rows[0].append(...this.heads);
  }

  sort(column) {
    const same = this.sorted.column === column;
    // The first look at a figure is for the largest.
    this.sorted = { column, down: same ? !this.sorted.down : column > 3 };
    this.draw();
  }

  show(replicas) {
    this.replicas = replicas;
    this.draw();
  }

  draw() {
    const { column, down } = this.sorted;
    this.heads.forEach((head, n) => {
      if (n === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.filter.hidden = this.replicas.length <= MANY;
    const wanted = this.filter.hidden ? "" : this.filter.querySelector("input").value.trim().toLowerCase();
    const found = this.replicas.filter((r) => `${r.id} ${r.address} ${r.model} ${r.state}`.toLowerCase().includes(wanted));
    const by = COLUMNS[column][1];
    const compare = (a, b) => (typeof by(a) === "string" ? by(a).localeCompare(by(b), "en", { numeric: true }) : by(a) - by(b));
    found.sort((a, b) => (down ? -1 : 1) * compare(a, b) || key(a).localeCompare(key(b)));
    const shown = found.slice(0, MOST);
    const rows = shown.map((replica) => this.row(replica));
    const kept = new Set(shown.map(key));
    for (const [each, row] of this.rows) {
      if (!kept.has(each)) {
        row.remove();
        this.rows.delete(each);
      }
    }
    rows.forEach((row, n) => {
      if (this.body.rows[n] !== row) this.body.insertBefore(row, this.body.rows[n] ?? null);
    });
    const rest = found.length - shown.length;
    const none = this.replicas.length ? "None is like that." : "";  // the notes say so
    say(byId("fleet-rest"), rest > 0 ? `and ${count(rest)} more` : shown.length ? "" : none);
  }

  row(replica) {
    let row = this.rows.get(key(replica));
    if (!row) {
      row = el("tr", { role: "row" }, ...COLUMNS.map(([name], n) => (n === 0
        ? el("th", { scope: "row", role: "rowheader" }, el("b"), el("small"))
        : el("td", { role: "cell", "data-name": name }))));
      this.rows.set(key(replica), row);
    }
    const cells = [...row.cells];
    say(cells[0].firstChild, replica.id);
    say(cells[0].lastChild, replica.address);
    COLUMNS.forEach(([, , show, about], n) => {
      if (n > 0) say(cells[n], show(replica));
      const title = about(replica);
      if (cells[n].title !== title) cells[n].title = title;
    });
    cells[1].className = tone(replica);
    cells[2].className = replica.mirror === "streaming" ? "" : "warn";
    cells[3].className = replica.breaker === "closed" ? "" : "warn";
    return row;
  }
}
