// One replica's mirror as a tree (WAI-ARIA treeview): each node is asked for when it is opened, a page at a time.

import { ask, Refused } from "./ask.js";
import { byId, el, say } from "./dom.js";
import { age, brief, count } from "./figures.js";

const PAGE = 50;
const DIGITS = 8;

export class Tree {
  // `failed`: told of what is not a refusal.
  constructor(failed) {
    this.failed = failed;
    this.root = byId("tree");
    this.select = byId("tree-replica");
    this.replica = null;
    this.select.addEventListener("change", () => this.look(this.select.value));
    byId("tree-again").addEventListener("click", () => this.look(this.select.value));
    this.root.addEventListener("keydown", (event) => this.press(event));
    this.root.addEventListener("click", (event) => this.click(event));
    this.root.addEventListener("focusin", (event) => this.mark(event.target.closest("[role=treeitem]")));
  }

  // The replicas there are; the first time, its tree is looked at.
  offer(replicas) {
    const ids = [...new Set(replicas.filter((r) => !r.refusal).map((r) => r.id))];
    if (ids.join("\n") !== [...this.select.options].map((option) => option.value).join("\n")) {
      this.select.replaceChildren(...ids.map((id) => el("option", { value: id, selected: id === this.replica }, id)));
    }
    if (!ids.includes(this.replica)) this.look(ids[0] ?? null);
  }

  async look(replica) {
    this.replica = replica;
    this.root.replaceChildren();
    say(byId("tree-size"), "");
    if (replica !== null) await this.load(this.root, null, null, false);
  }

  // A page into `list`, below the branch of a first block.
  async load(list, below, start, focus) {
    const replica = this.replica;
    const mine = (list.asked = {});
    list.setAttribute("aria-busy", "true");
    let page;
    try {
      page = await ask("tree", { replica, below, start, limit: PAGE });
    } catch (error) {
      if (!(error instanceof Refused)) this.failed(error);
      else if (list.asked === mine) this.add(list, [this.notice(error.message)], focus);
      return;
    } finally {
      if (list.asked === mine) list.removeAttribute("aria-busy");
    }
    // Another replica was chosen meanwhile, it was asked again, or the node is gone.
    if (replica !== this.replica || list.asked !== mine || !list.isConnected) return;
    this.all = page;
    const forgotten = page.forgotten ? `, ${count(page.forgotten)} of them forgotten here for want of memory` : "";
    say(byId("tree-size"), page.blocks ? `${count(page.blocks)} blocks of ${page.block_size} tokens${forgotten}` : "Nothing is cached there.");
    const level = 1 + Number(list.closest("[role=treeitem]")?.getAttribute("aria-level") ?? 0);
    const items = page.branches.map((branch) => this.item(branch, level));
    if (page.next !== null) items.push(this.more(below, page.next, level));
    this.add(list, items, focus);
    // A page may come empty before the last one.
    if (page.branches.length === 0 && page.next !== null) await this.load(list, below, page.next, focus);
  }

  // At the end of a list, in the place of what stood for the rest.
  add(list, items, focus) {
    list.querySelector(":scope > .more")?.remove();
    list.append(...items);
    if (!this.root.querySelector("[tabindex='0']")) this.root.querySelector("[role=treeitem]")?.setAttribute("tabindex", "0");
    if (focus && items.length) items[0].focus();
  }

  item(branch, level) {
    const { first, blocks, replicas, branches_below: below, blocks_below: deep, all_below: all } = branch;
    const tokens = blocks * this.all.block_size;
    const atLeast = all ? "" : "≥ ";
    const used = branch.used_within_s === null ? `> ${age(this.all.reaches_back_s)}` : age(branch.used_within_s);
    const share = el("i", { class: "share" });
    share.style.setProperty("--share", Math.min(1, (blocks + deep) / Math.max(1, this.all.blocks)).toFixed(4));
    const label = `Branch ${first.slice(0, DIGITS)}${branch.detached ? ", its beginning is not known" : ""}: ${count(blocks)} blocks, `
      + `${count(tokens)} tokens, on ${count(replicas)} ${replicas === 1 ? "replica" : "replicas"}, `
      + `${atLeast}${count(deep)} blocks below, ${branch.used_within_s === null ? "not used for" : "used within"} ${used.replace("> ", "more than ")}`;
    const row = el("div", { class: "row" },
      el("span", { class: "name", title: first }, el("code", {}, first.slice(0, DIGITS)), branch.detached ? el("em", {}, "detached") : null),
      cell("Blocks", count(blocks)), cell("Tokens", brief(tokens)), cell("Replicas", count(replicas)),
      cell("Below", below ? `${atLeast}${brief(deep)}` : "–"), cell("Used", used), share);
    const item = el("li", { role: "treeitem", tabindex: -1, "aria-level": level, "aria-label": label, "data-first": first }, row);
    item.style.setProperty("--level", level);
    if (below) item.setAttribute("aria-expanded", "false");
    return item;
  }

  more(below, start, level) {
    const item = el("li", { role: "treeitem", class: "more", tabindex: -1, "aria-level": level, "data-start": start, "data-below": below ?? "" },
      el("div", { class: "row" }, "More …"));
    item.style.setProperty("--level", level);
    return item;
  }

  notice(text) {
    return el("li", { role: "treeitem", class: "notice", tabindex: -1 }, el("div", { class: "row" }, `${text}. Look again.`));
  }

  async open(item) {
    if (item.getAttribute("aria-expanded") !== "false") return;
    item.setAttribute("aria-expanded", "true");
    if (!item.querySelector("[role=group]")) {
      const group = el("ul", { role: "group" });
      item.append(group);
      await this.load(group, item.dataset.first, null, false);
    }
  }

  close(item) {
    item.setAttribute("aria-expanded", "false");
    // Asked for anew when it is opened again: it is not what it was.
    item.querySelector("[role=group]")?.remove();
  }

  async toggle(item) {
    if (item.classList.contains("more")) {
      await this.load(item.parentElement, item.dataset.below || null, item.dataset.start, true);
    } else if (item.getAttribute("aria-expanded") === "true") this.close(item);
    else await this.open(item);
  }

  click(event) {
    const item = event.target.closest("[role=treeitem]");
    if (!item) return;
    item.focus();
    this.toggle(item);
  }

  // Of all nodes one can be reached by Tab.
  mark(item) {
    if (!item) return;
    for (const other of this.root.querySelectorAll("[tabindex='0']")) other.setAttribute("tabindex", "-1");
    item.setAttribute("tabindex", "0");
  }

  press(event) {
    const item = event.target.closest("[role=treeitem]");
    if (!item || event.altKey || event.ctrlKey || event.metaKey) return;
    const seen = [...this.root.querySelectorAll("[role=treeitem]")];
    const at = seen.indexOf(item);
    const above = item.parentElement.closest("[role=treeitem]");
    const expanded = item.getAttribute("aria-expanded");
    const actions = {
      ArrowDown: () => seen[at + 1]?.focus(),
      ArrowUp: () => seen[at - 1]?.focus(),
      Home: () => seen[0].focus(),
      End: () => seen.at(-1).focus(),
      ArrowRight: () => (expanded === "false" ? this.open(item) : expanded === "true" && item.querySelector("[role=treeitem]")?.focus()),
      ArrowLeft: () => (expanded === "true" ? this.close(item) : above?.focus()),
      Enter: () => this.toggle(item),
      " ": () => this.toggle(item),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}

const cell = (name, text) => el("span", { "data-name": name }, text);
