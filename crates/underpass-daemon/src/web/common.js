"use strict";

// What the pages share: rates of counters, tables, drawings. Everything is made by createElement and textContent: no name of a
// link or text of an answer becomes markup.

const EVERY = 1000;
const KEPT = 60;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);

/** What counters have grown by, by their names. */
const meter = {
  time: null,
  counters: new Map(),
  rates: new Map(),

  read(time, now) {
    const seconds = this.time === null ? 0 : (time - this.time) / 1000;
    // The router tells one state for a while, however many ask.
    if (this.time !== null && seconds <= 0) return;
    for (const name of [...this.rates.keys()]) if (!now.has(name)) this.rates.delete(name);
    if (this.time !== null) {
      for (const [name, count] of now) {
        const rates = this.rates.get(name) ?? [];
        // A router that has begun anew counts from 0.
        rates.push(Math.max(0, count - (this.counters.get(name) ?? 0)) / seconds);
        if (rates.length > KEPT) rates.shift();
        this.rates.set(name, rates);
      }
    }
    this.time = time;
    this.counters = now;
  },

  rate(name) {
    return this.rates.get(name)?.at(-1) ?? null;
  },
};

/** The last hour, as the server has kept it; shown instead of the last minute where somebody asks for it. */
const hour = {
  shown: false,
  asked: 0,
  points: 720,
  series: {},

  /** Asks for it, not more often than it changes. */
  async refresh(path) {
    if (!this.shown || performance.now() - this.asked < 4500) return;
    this.asked = performance.now();
    const told = await ask(path);
    [this.points, this.series] = [told.points, told.series];
  },

  /** Makes a button switch between minute and hour. */
  button(id, changed) {
    byId(id).addEventListener("click", () => {
      [this.shown, this.asked] = [!this.shown, 0];
      byId(id).setAttribute("aria-pressed", String(this.shown));
      changed();
    });
  },
};

const span = () => (hour.shown ? "last hour" : "last minute");

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(20000) });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${answer.status} ${answer.statusText}`);
  return answer.json();
}

/** A number in few characters. */
function short(number) {
  if (number === null || number === undefined) return "–";
  let rest = number;
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (rest < 999.5 || unit === "T") {
      const digits = unit === "" || rest >= 99.95 ? 0 : rest >= 9.995 ? 1 : 2;
      return `${rest.toFixed(digits)}${unit}`;
    }
    rest /= 1000;
  }
  return String(number);
}

const bits = (name) => {
  const rate = meter.rate(name);
  return rate === null ? "–" : `${short(rate * 8)}bit/s`;
};
const perSecond = (name) => `${short(meter.rate(name))}/s`;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawing(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

/** How a rate went, as a line. */
function spark(name) {
  const [rates, kept] = hour.shown ? [hour.series[name] ?? [], hour.points] : [meter.rates.get(name) ?? [], KEPT];
  const highest = Math.max(1, ...rates);
  const from = kept - rates.length;
  const points = rates.map((rate, at) => `${((from + at) * 90) / (kept - 1)},${17 - (rate * 16) / highest}`);
  const svg = drawing("svg", { class: "spark", viewBox: "0 0 90 18", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(drawing("polyline", { points: points.join(" ") }));
  return svg;
}

/**
 * Fills a table. A column: its title, led by `#` where it has numbers and by `~` where a narrow window leaves it out. A row: its
 * cells, whether something is lost there now, and what a click does.
 */
function table(id, titles, rows, empty) {
  const columns = titles.map((title) => ({
    number: /^~?#/.test(title), wide: title.startsWith("~"), title: title.replace(/^~?#?/, ""),
  }));
  const kind = (column, number) => [column.number ? number : "", column.wide ? "wide" : ""].join(" ").trim();
  const line = (row) => {
    const cells = row.cells.map((cell, at) => element("td", { class: kind(columns[at], "number rate") }, cell));
    const made = element("tr", { class: row.alarm ? "alarm" : "" }, ...cells);
    if (row.click) {
      made.classList.add("clickable");
      made.addEventListener("click", row.click);
    }
    return made;
  };
  const head = columns.map((column) => element("th", { class: kind(column, "number"), scope: "col" }, column.title));
  const body = rows.map(line);
  // What is left of the width goes to no number.
  if (columns.at(-1).number) {
    head.push(element("td"));
    body.forEach((row) => row.append(element("td")));
  }
  if (rows.length === 0) {
    byId(id).replaceChildren(element("tbody", {}, element("tr", {}, element("td", { class: "empty" }, empty))));
  } else {
    byId(id).replaceChildren(
      element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  }
}

const grows = (name) => (meter.rate(name) ?? 0) > 0;

/** Headends and routes of a router. */
function routeTables(told) {
  const line = (route) => ({
    cells: [route.prefix, String(route.table), route.protocol ?? "", String(route.metric),
      [route.kind, ...route.ways].filter(Boolean).join("; ")],
  });
  const columns = ["prefix", "~#table", "~proto", "~#metric", "where to"];
  table("headends", columns, told.headends.map(line), "no route puts headers on its packets");
  table("routes", columns, told.routes.map(line), "there is no route");
  const more = told.more_headends > 0 ? `, ${short(told.more_headends)} more headends` : "";
  byId("prefixes").textContent = `${short(told.prefixes)} prefixes in all tables, the router's own among them${more}`;
}

/** Calls `turn` every second, and says so where there is no answer. */
async function everySecond(turn, who) {
  const trouble = byId("trouble");
  try {
    await turn();
    trouble.hidden = true;
  } catch (error) {
    trouble.textContent = `${who} does not answer: ${error.message}`;
    trouble.hidden = false;
  }
  setTimeout(everySecond, EVERY, turn, who);
}
