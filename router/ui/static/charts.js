// Line charts of the last hour: a few lines, a grid, and what a moment had when it is pointed at.

import { el, say, svg } from "./dom.js";
import { brief, clock, percent, seconds } from "./figures.js";

// What is shown: all there is, but of a router that has just started some minutes of the hour, not a corner.
const LEAST_S = 600;
// Samples in a point: a minute. One alone is often of no or of one request.
const SMOOTHED = 6;
const LEFT = 54, RIGHT = 8, TOP = 8, BOTTOM = 22;

const perSecond = (number) => `${number < 10 ? number.toFixed(1) : brief(Math.round(number))}/s`;
const share = (number) => percent(number, 1);

const CHARTS = [
  {
    title: "Prompt tokens that were cached", height: 190, most: 1, show: share,
    lines: [
      { name: "delivered", about: "really reused", value: ratio("delivered", "prompt"), area: true },
      { name: "captured", about: "on the picked replica, by its mirror", value: ratio("captured", "prompt") },
      { name: "available", about: "on the replica with most", value: ratio("available", "prompt") },
    ],
  },
  { title: "Requests", height: 110, least: 1, show: perSecond, lines: [{ name: "requests", value: ratio("requests", "seconds"), area: true }] },
  { title: "Mean time to first token", height: 110, least: 0.01, show: seconds, lines: [{ name: "first", value: ratio("first_token_s", "first_tokens"), area: true }] },
  { title: "Prompt tokens to compute", height: 110, least: 100, show: (n) => brief(Math.round(n)), lines: [{ name: "pending", value: ratio("pending_tokens", "one"), area: true }] },
];

// Of the samples around one; null where nothing happened.
function ratio(part, all) {
  return (history, at) => {
    let above = 0, below = 0;
    for (let i = Math.max(0, at - SMOOTHED + 1); i <= at; i++) {
      above += history[part][i];
      below += all === "one" ? 1 : history[all][i];
    }
    return below > 0 ? above / below : null;
  };
}

// The least of 1, 2, 5, 10, 20, ... that is not less.
function ceiling(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return power * [1, 2, 5, 10].find((step) => step * power >= number * 0.9999);
}

export class Charts {
  constructor(place) {
    this.charts = CHARTS.map((about) => new Chart(about));
    place.append(...this.charts.map((chart) => chart.figure));
    new ResizeObserver(() => this.charts.forEach((chart) => chart.draw())).observe(place);
  }

  show(history) {
    this.charts.forEach((chart) => chart.show(history));
  }
}

class Chart {
  constructor(about) {
    this.about = about;
    this.history = null;
    this.pointed = null;
    this.legend = el("figcaption", {}, el("strong", {}, about.title), el("span", { class: "at" }));
    this.values = about.lines.map((line) => {
      const value = el("b");
      const label = about.lines.length > 1 ? `${line.name} ` : "";
      this.legend.append(el("span", { class: `key ${line.name}`, title: line.about ?? about.title }, label, value));
      return value;
    });
    this.svg = svg("svg", { role: "img", height: about.height });
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.figure = el("figure", { class: about.lines.length > 1 ? "large" : "small" }, this.legend, this.svg);
  }

  show(history) {
    this.history = history;
    this.points = this.about.lines.map((line) => history.at_s.map((_, at) => line.value(history, at)));
    this.draw();
  }

  point(event) {
    if (!this.history?.at_s.length) return;
    this.pointed = null;
    if (event) {
      const x = event.clientX - this.svg.getBoundingClientRect().left;
      const at = this.end - this.span * (1 - (x - LEFT) / (this.width - LEFT - RIGHT));
      const distance = this.history.at_s.map((each) => Math.abs(each - at));
      this.pointed = distance.indexOf(Math.min(...distance));
    }
    this.draw();
  }

  draw() {
    if (!this.history || !this.svg.clientWidth) return;
    const { about, history, points } = this;
    this.width = this.svg.clientWidth;
    this.end = history.at_s.at(-1) ?? Date.now() / 1000;
    this.span = Math.max(LEAST_S, this.end - (history.at_s[0] ?? this.end));
    const known = points.flat().filter((value) => value !== null);
    const most = about.most ?? ceiling(Math.max(...known, about.least));
    const x = (atS) => LEFT + (this.width - LEFT - RIGHT) * (1 - (this.end - atS) / this.span);
    const y = (value) => TOP + (about.height - TOP - BOTTOM) * (1 - value / most);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${about.height}`);
    this.svg.replaceChildren(
      ...this.grid(x, y, most),
      ...about.lines.map((line, n) => this.line(line, points[n], x, y)).reverse(),
    );
    const shown = this.pointed ?? history.at_s.length - 1;
    const latest = points.map((values) => values[shown] ?? null);
    latest.forEach((value, n) => say(this.values[n], value === null ? "–" : about.show(value)));
    const at = this.pointed === null ? "" : clock(history.at_s[shown], true);
    say(this.legend.querySelector(".at"), at);
    if (this.pointed !== null) {
      this.svg.append(svg("line", { class: "pointed", x1: x(history.at_s[shown]), x2: x(history.at_s[shown]), y1: TOP, y2: y(0) }));
    }
    const said = about.lines.map((line, n) => `${about.lines.length > 1 ? line.name : "now"} ${this.values[n].textContent}`);
    this.svg.setAttribute("aria-label", `${about.title}: ${said.join(", ")}`);
  }

  grid(x, y, most) {
    const parts = [];
    for (const step of [0, 0.5, 1]) {
      const value = step * most;
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y(value), y2: y(value) }));
      const label = this.about.show(value).replace(".0 %", " %");
      parts.push(svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, label));
    }
    const marks = this.width < 480 ? 3 : 6;
    const every = [120, 300, 600, 900, 1800].find((step) => this.span / step <= marks) ?? 3600;
    for (let back = 0; back <= this.span; back += every) {
      const anchor = back === 0 ? "end" : back > 0.95 * this.span ? "start" : "middle";
      const label = back === 0 ? "now" : `−${back / 60} min`;
      parts.push(svg("text", { class: "tick", x: x(this.end - back), y: this.about.height - 5, "text-anchor": anchor }, label));
    }
    return parts;
  }

  // With a hole where there is no value.
  line(line, values, x, y) {
    let path = "", area = "", begun = null;
    const close = (last) => {
      if (begun !== null) area += `L${x(this.history.at_s[last]).toFixed(1)} ${y(0)}L${x(this.history.at_s[begun]).toFixed(1)} ${y(0)}Z`;
      begun = null;
    };
    values.forEach((value, n) => {
      if (value === null) {
        close(n - 1);
        return;
      }
      const place = `${x(this.history.at_s[n]).toFixed(1)} ${y(value).toFixed(1)}`;
      path += begun === null ? `M${place}h0.01` : `L${place}`;
      area += begun === null ? `M${place}` : `L${place}`;
      begun ??= n;
    });
    close(values.length - 1);
    return svg("g", { class: line.name },
      line.area ? svg("path", { class: "area", d: area }) : null,
      svg("path", { class: "line", d: path }));
  }
}
