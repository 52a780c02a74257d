"use strict";

// The page of a network: asks /api/network.json every second and shows it. What pages share is in common.js.

// Rows of a table that are shown at most: the busiest.
const ROWS = 200;
// Of so many links at most every end has its rates in the picture; of more, those of the chosen node.
const CROWDED = 40;
const BOX = { width: 112, height: 50 };
// The drawing of a file has room for a number at each end of a link; here there are words.
const WIDER = 1.8;

const chosen = { node: null, picking: false, first: null };
let latest = null;
let ways = [];

const nameOf = (number) => latest.nodes[number]?.name ?? "";
const endName = (end) => `${nameOf(end.node)}:${end.device}`;
const all = (links) => links.flat();
const rates = (...names) => sum(names.map((name) => meter.rate(name) ?? 0));

/** The counters, by the names that the server's history has for them. */
function countersOf(network) {
  const counters = new Map();
  for (const node of network.nodes) {
    if (node.totals) {
      counters.set(`node ${node.name} received`, node.totals.received);
      counters.set(`node ${node.name} dropped`, node.totals.dropped);
    }
    for (const [reason, count] of Object.entries(node.drops)) counters.set(`drop ${node.name} ${reason}`, count);
    for (const sid of node.sids) counters.set(`sid ${node.name} ${sid.table} ${sid.prefix}`, sid.packets);
    for (const policy of node.policies) counters.set(`policy ${node.name} ${policy.encap}`, policy.packets);
    for (const label of node.labels) counters.set(`label ${node.name} ${label.label}`, label.packets);
    for (const tunnel of node.tunnels) {
      counters.set(`tunnel ${node.name} ${tunnel.name}`, tunnel.rx_packets + tunnel.tx_packets);
    }
  }
  for (const end of all(network.links)) {
    const name = `end ${network.nodes[end.node].name}:${end.device}`;
    counters.set(`${name} rx`, end.rx_packets);
    counters.set(`${name} rx bytes`, end.rx_bytes);
    counters.set(`${name} tx bytes`, end.tx_bytes);
    for (const [reason, count] of Object.entries(end.drops)) counters.set(`${name} drop ${reason}`, count);
  }
  return counters;
}

/** The links that packets of the followed flow took, by their ends. */
function taken() {
  const ends = new Set();
  for (const visit of ways.flatMap((way) => way.visits)) {
    for (const port of [visit.port, ...visit.sent]) ends.add(`${nameOf(visit.node)}:${port}`);
  }
  return ends;
}

function picture(network) {
  const svg = byId("network");
  const followed = taken();
  const shapes = [];
  const labels = [];
  const crowded = network.links.length > CROWDED;
  for (const ends of network.links) {
    const [one, other] = ends.map((end) => network.nodes[end.node]);
    const names = ends.map((end) => `end ${endName(end)}`);
    const busy = rates(...names.map((name) => `${name} rx`)) > 0;
    const up = ends.every((end) => end.up);
    const way = ends.some((end) => followed.has(endName(end)));
    shapes.push(drawing("line", {
      class: `link ${busy ? "busy" : ""} ${up ? "" : "down"} ${way ? "way" : ""}`,
      x1: one.x, y1: one.y, x2: other.x, y2: other.y, "data-ends": ends.map(endName).join(" "),
    }));
    for (const [near, far, end] of [[one, other, ends[0]], [other, one, ends[1]]]) {
      const name = `end ${endName(end)}`;
      // At a third of the way, where the box is behind.
      const [x, y] = [(2 * near.x + far.x) / 3, (2 * near.y + far.y) / 3];
      const label = (text, down, kind) => labels.push(drawing("text", {
        class: `label ${kind}`, x, y: y + down, "text-anchor": "middle", "data-end": endName(end),
      }, text));
      const lost = Object.keys(end.drops).filter((reason) => grows(`${name} drop ${reason}`));
      const most = lost.sort((a, b) => rates(`${name} drop ${b}`) - rates(`${name} drop ${a}`))[0];
      if (most !== undefined) label(`✕ ${most} ${perSecond(`${name} drop ${most}`)}`, 14, "drop");
      if (crowded && !ends.some((other) => nameOf(other.node) === chosen.node)) continue;
      label(end.device, -12, "faint");
      label(`in ${bits(`${name} rx bytes`)}`, 1, "");
    }
  }
  for (const node of network.nodes) {
    const kind = [
      "node", node.kind === "host" ? "host" : "", node.trouble ? "trouble" : "",
      [chosen.node, chosen.first].includes(node.name) ? "chosen" : "",
    ].join(" ");
    const group = drawing("g", { class: kind, tabindex: 0, role: "button", "data-node": node.name, "aria-label": node.name });
    group.append(drawing("rect", {
      x: node.x - BOX.width / 2, y: node.y - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 6,
    }));
    const parts = [
      [node.vrfs, "VRF", "VRFs"], [node.sids, "SID", "SIDs"], [node.policies, "policy", "policies"],
      [node.labels, "label", "labels"], [node.tunnels, "tunnel", "tunnels"],
    ]
      .filter(([objects]) => objects.length > 0)
      .map(([objects, one, many]) => `${objects.length} ${objects.length === 1 ? one : many}`);
    const lines = [[node.name, "name", -9], [node.kind, "faint", 5], [parts.slice(0, 2).join(", "), "faint", 18]];
    for (const [text, style, down] of lines) {
      group.append(drawing("text", { class: style, x: node.x, y: node.y + down, "text-anchor": "middle" }, text));
    }
    shapes.push(group);
  }
  svg.setAttribute("viewBox", `0 0 ${network.width} ${network.height}`);
  svg.setAttribute("width", network.width);
  svg.setAttribute("height", network.height);
  // Who went there by the keyboard stays there.
  const focused = document.activeElement?.getAttribute("data-node");
  svg.replaceChildren(...shapes, ...labels);
  if (focused) svg.querySelector(`[data-node="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

/** The busiest rows of the chosen node, or of all. A row also has its node and how busy it is. */
function rowsOf(rows) {
  const own = rows.filter((row) => chosen.node === null || row.node === chosen.node);
  return own.sort((a, b) => b.rate - a.rate).slice(0, ROWS);
}

function tables(network) {
  const nodes = network.nodes;
  const row = (node, name, cells, more = {}) => ({ node, rate: meter.rate(name) ?? 0, cells, ...more });
  const at = (place, node, name, reason, count) => row(node, name,
    [place, reason, perSecond(name), short(count), spark(name), network.meanings[reason] ?? "Dropped by the device."],
    { alarm: grows(name) });
  table("drops", ["where", "reason", "#now", "#all", "~" + span(), "~what it means"], rowsOf([
    ...all(network.links).flatMap((end) => Object.entries(end.drops).map(([reason, count]) =>
      at(endName(end), nameOf(end.node), `end ${endName(end)} drop ${reason}`, reason, count))),
    ...nodes.flatMap((node) => Object.entries(node.drops).map(([reason, count]) =>
      at(node.name, node.name, `drop ${node.name} ${reason}`, reason, count))),
  ]), "nothing was dropped");

  table("ends", ["end", "state", "#in", span(), "#out", "~addresses"], rowsOf(all(network.links).map((end) => {
    const name = `end ${endName(end)}`;
    return row(nameOf(end.node), `${name} rx`, [endName(end), end.up ? "up" : "down", bits(`${name} rx bytes`),
      spark(`${name} rx bytes`), bits(`${name} tx bytes`), end.addresses.join(", ")], { alarm: !end.up });
  })), "there is no link");

  table("nodes", ["node", "kind", "#in", span(), "#dropped", "~namespace"], rowsOf(nodes.map((node) =>
    row(node.name, `node ${node.name} received`, [node.name, node.trouble ?? node.kind, perSecond(`node ${node.name} received`),
      spark(`node ${node.name} received`), perSecond(`node ${node.name} dropped`), node.namespace ?? ""],
      { alarm: Boolean(node.trouble) || grows(`node ${node.name} dropped`), click: () => choose(node.name) }))),
  "there is no node");

  const objects = (id, columns, list, empty) => table(id, ["node", ...columns],
    rowsOf(nodes.flatMap((node) => list(node).map(([name, ...cells]) =>
      row(node.name, name, [node.name, ...cells])))), empty);
  objects("vrfs", ["VRF", "#table", "~links"],
    (node) => node.vrfs.map((vrf) => ["", vrf.name, String(vrf.table), vrf.links.join(", ")]), "there is no VRF");
  objects("sids", ["prefix", "behaviour", "~#table", "#now", "~" + span(), "~#all", "#errors"],
    (node) => node.sids.map((sid) => {
      const name = `sid ${node.name} ${sid.table} ${sid.prefix}`;
      return [name, sid.prefix, sid.behaviour, String(sid.table), perSecond(name), spark(name), short(sid.packets),
        short(sid.errors)];
    }), "there is no local SID");
  objects("policies", ["policy", "#now", "~" + span(), "~#all", "#errors"],
    (node) => node.policies.map((policy) => {
      const name = `policy ${node.name} ${policy.encap}`;
      return [name, policy.encap.replace("seg6 mode ", ""), perSecond(name), spark(name), short(policy.packets), short(policy.errors)];
    }), "no route has segments");
  objects("labels", ["label", "#now", span(), "~#all", "#errors"],
    (node) => node.labels.map((label) => {
      const name = `label ${node.name} ${label.label}`;
      return [name, String(label.label), perSecond(name), spark(name), short(label.packets), short(label.errors)];
    }), "no label has a route");
  objects("tunnels", ["tunnel", "~kind", "~state", "remote", "#now", "~" + span()],
    (node) => node.tunnels.map((tunnel) => {
      const name = `tunnel ${node.name} ${tunnel.name}`;
      return [name, tunnel.name, tunnel.encap ? `${tunnel.kind} in ${tunnel.encap}` : tunnel.kind, tunnel.up ? "up" : "down",
        tunnel.remote, perSecond(name), spark(name)];
    }), "there is no tunnel");
}

/** What is known of the chosen node alone. */
function detail(network) {
  const node = network.nodes.find((one) => one.name === chosen.node);
  byId("node").hidden = node === undefined;
  if (node === undefined) return;
  byId("node-title").textContent = `Node ${node.name}`;
  const facts = [`${node.kind}${node.namespace ? `, namespace ${node.namespace}` : ""}`];
  if (node.trouble) facts.push(node.trouble);
  if (node.totals) {
    const { received, sent, delivered, dropped } = node.totals;
    facts.push(`received ${short(received)}, sent ${short(sent)}, to the host ${short(delivered)}, dropped ${short(dropped)}`);
  }
  facts.push(`addresses: ${node.addresses.join(", ") || "none"}`);
  byId("node-facts").replaceChildren(...facts.flatMap((fact) => [fact, element("br")]));
  if (node.page) {
    // The page of the router itself is at another port of the same host.
    const page = new URL("/", location.href);
    page.port = node.page;
    byId("node-facts").append(element("a", { href: page.href }, "the router's own page"));
  }
  byId("routing").hidden = node.kind === "host";
}

function show(network) {
  byId("name").textContent = network.name;
  byId("place").textContent = `Underpass lab on ${network.host}`;
  document.title = `${network.name} – Underpass lab`;
  const total = (what) => short(rates(...network.nodes.map((node) => `node ${node.name} ${what}`)));
  byId("totals").textContent = `${network.nodes.length} nodes, ${network.links.length} links; all routers: ` +
    `in ${total("received")}/s, dropped ${total("dropped")}/s`;
  byId("warnings").replaceChildren(...network.nodes.flatMap((node) =>
    [...node.warnings, ...(node.trouble ? [node.trouble] : [])].map((text) => element("li", {}, `${node.name}: ${text}`))));
  const names = byId("names");
  if (names.childElementCount !== network.nodes.length) {
    names.replaceChildren(...network.nodes.map((node) => element("option", { value: node.name })));
  }
  picture(network);
  detail(network);
  tables(network);
}

const routing = {
  asked: 0,

  async refresh() {
    const wanted = chosen.node !== null && !byId("routing").hidden && byId("routing").open;
    if (!wanted || performance.now() - this.asked < 4500) return;
    this.asked = performance.now();
    routeTables(await ask(`/api/routes.json?node=${encodeURIComponent(chosen.node)}`));
  },
};

const historyPath = () => `/api/history.json${chosen.node === null ? "" : `?node=${encodeURIComponent(chosen.node)}`}`;

/** What was pressed is shown at once. */
async function again(refresh = async () => {}) {
  try {
    await refresh();
    if (latest !== null) show(latest);
  } catch {
    // The next turn says why.
  }
}

function choose(name) {
  if (chosen.picking) return pick(name);
  chosen.node = chosen.node === name ? null : name;
  hour.asked = 0;
  routing.asked = 0;
  return again(() => Promise.all([hour.refresh(historyPath()), routing.refresh()]));
}

function picking(on) {
  [chosen.picking, chosen.first] = [on, null];
  byId("pick").setAttribute("aria-pressed", String(on));
  if (on) tell("Click the node that the flow comes from, then the one that it goes to.");
}

function pick(name) {
  if (chosen.first === null) {
    chosen.first = name;
    byId("from").value = name;
    return again();
  }
  byId("to").value = name;
  picking(false);
  return follow();
}

function tell(text, bad = false) {
  byId("followed").textContent = text;
  byId("followed").className = bad ? "bad" : "faint";
}

async function follow() {
  const [from, to] = ["from", "to"].map((id) => byId(id).value.trim());
  ways = [];
  byId("ways").replaceChildren();
  tell(`Routers follow packets from ${from} to ${to} …`);
  try {
    const told = await ask(`/api/follow.json?from=${encodeURIComponent(from)}&to=${encodeURIComponent(to)}`);
    ways = told.ways;
    const refused = told.refused.map(({ node, why }) => ` ${node} followed none: ${why}.`).join("");
    const part = told.in_part > 0 ? ` Of ${told.in_part} more only a part of the way is known, or they come from another node.` : "";
    const count = told.packets === 1 ? "1 packet" : `${told.packets} packets`;
    tell(`${told.packets === 0 ? "No packet" : count} from ${from} to ${to} in three seconds.${part}${refused}`, refused !== "");
    byId("ways").replaceChildren(...ways.map(wayShown));
  } catch (error) {
    tell(error.message, true);
  }
  return again();
}

function wayShown(way) {
  const stop = (text, bad = false) => element("li", bad ? { class: "bad" } : {}, text);
  const stops = way.visits.map((visit) => {
    const out = visit.sent.length > 0 ? ` out by ${visit.sent.join(", ")}` : visit.delivered ? " delivered" : "";
    return stop(`${nameOf(visit.node)}: in by ${visit.port}${out}`, visit.dropped.length > 0);
  });
  if (way.from !== null) stops.unshift(stop(nameOf(way.from)));
  stops.push(stop(way.end, way.end.startsWith("dropped")));
  const steps = way.visits.map((visit) => element("details", {},
    element("summary", {}, `${nameOf(visit.node)}, step by step`),
    element("ul", {}, ...visit.steps.map((step) => element("li", {}, step)))));
  const title = element("strong", {}, way.packets === 1 ? "1 packet" : `${way.packets} packets`);
  return element("div", { class: "way" }, title, element("ol", {}, ...stops), ...steps);
}

async function turn() {
  latest = await ask("/api/network.json");
  latest.width *= WIDER;
  for (const node of latest.nodes) node.x *= WIDER;
  meter.read(latest.time, countersOf(latest));
  await Promise.all([hour.refresh(historyPath()), routing.refresh()]);
  show(latest);
}

function nodeOf(event) {
  return event.target.closest("[data-node]")?.getAttribute("data-node") ?? null;
}

byId("network").addEventListener("click", (event) => {
  const name = nodeOf(event);
  if (name !== null) choose(name);
});
byId("network").addEventListener("keydown", (event) => {
  const name = nodeOf(event);
  if (name !== null && ["Enter", " "].includes(event.key)) {
    event.preventDefault();
    choose(name);
  }
});
byId("flow").addEventListener("submit", (event) => {
  event.preventDefault();
  picking(false);
  follow();
});
byId("pick").addEventListener("click", () => picking(!chosen.picking));
byId("swap").addEventListener("click", () => {
  [byId("from").value, byId("to").value] = [byId("to").value, byId("from").value];
});
byId("all").addEventListener("click", () => choose(chosen.node));
byId("routing").addEventListener("toggle", () => again(() => routing.refresh()));
hour.button("hour", () => again(() => hour.refresh(historyPath())));
everySecond(turn, "The lab");
