"use strict";

// The page of a router: asks /api/state.json every second and shows it. What pages share is in common.js.

// Nodes of a kind in the picture; the tables have all.
const SHOWN = 12;

const isTunnel = (link) => link.tunnel !== undefined;

/** The addresses of a link, those of IPv4 and those of IPv6. */
const families = (link) => [false, true].map((six) => (link?.addresses ?? []).filter((one) => one.includes(":") === six));

function countersOf(state) {
  const all = new Map();
  for (const name of ["received", "sent", "delivered", "dropped"]) all.set(name, state.totals[name]);
  for (const [reason, count] of Object.entries(state.drops)) all.set(`drop ${reason}`, count);
  for (const port of state.ports) {
    all.set(`port ${port.name} drops`, sum(Object.values(port.drops)));
    all.set(`port ${port.name} path drops`, sum(Object.values(port.path_drops)));
  }
  for (const link of state.links) {
    for (const way of ["rx", "tx"]) {
      all.set(`link ${link.name} ${way}`, link[`${way}_packets`]);
      all.set(`link ${link.name} ${way} bytes`, link[`${way}_bytes`]);
    }
    all.set(`link ${link.name} errors`, link.rx_errors + link.tx_errors);
  }
  const objects = [
    ...state.sids.map((sid) => [sidName(sid), sid]),
    ...state.policies.map((policy) => [policyName(policy), policy]),
    ...state.labels.map((label) => [`label ${label.label}`, label]),
    ...state.queues.map((queue) => [`queue ${queue.device} ${queue.handle}`, queue]),
    ...state.policers.map((policer) => [`policer ${policer.index}`, policer]),
  ];
  for (const [name, object] of objects) {
    all.set(name, object.packets);
    all.set(`${name} bytes`, object.bytes);
    all.set(`${name} lost`, object.errors ?? object.drops);
  }
  for (const worker of state.workers) {
    all.set(`worker ${worker.number}`, worker.totals.received);
    all.set(`worker ${worker.number} lost`, worker.totals.dropped);
    all.set(`worker ${worker.number} sleeps`, worker.sleeps);
  }
  return all;
}

const policyName = (policy) => `policy ${policy.encap}`;
const sidName = (sid) => `sid ${sid.table} ${sid.prefix}`;

const lostRow = (name, cells) => ({ cells, alarm: grows(`${name} lost`) });

function tables(state) {
  const drops = Object.entries(state.drops).sort(
    ([a, x], [b, y]) => (meter.rate(`drop ${b}`) ?? 0) - (meter.rate(`drop ${a}`) ?? 0) || y - x);
  const portDrops = state.ports.flatMap((port) =>
    Object.entries(port.drops).filter(([, count]) => count > 0).map(([reason, count]) => ({
      cells: [`${reason} at ${port.name}`, perSecond(`port ${port.name} drops`), short(count),
        spark(`port ${port.name} drops`), "Dropped at the port: docs/metrics.md tells the reasons."],
      alarm: grows(`port ${port.name} drops`),
    })));
  table("drops", ["reason", "#now", "#all", span(), "~what it means"], [
    ...drops.map(([reason, count]) => ({
      cells: [reason, perSecond(`drop ${reason}`), short(count), spark(`drop ${reason}`), state.meanings[reason] ?? ""],
      alarm: grows(`drop ${reason}`),
    })),
    ...portDrops,
  ], "nothing was dropped");

  const up = (link) => (link?.up ? "up" : "down");
  table("ports", ["port", "state", "#in", "~#bit/s", span(), "#out", "~#bit/s", "~" + span(), "#drops", "~driver"],
    state.ports.map((port) => {
      const name = `link ${port.name}`;
      const link = state.links.find((link) => link.index === port.index);
      const own = families(link).flat().map((address) => element("small", {}, address));
      const lost = (meter.rate(`port ${port.name} drops`) ?? 0) + (meter.rate(`port ${port.name} path drops`) ?? 0);
      return {
        cells: [element("div", { class: "stack" }, port.name, ...own), up(link), perSecond(`${name} rx`), bits(`${name} rx bytes`),
          spark(`${name} rx`), perSecond(`${name} tx`), bits(`${name} tx bytes`), spark(`${name} tx`), `${short(lost)}/s`,
          port.driver],
        alarm: !link?.up || lost > 0,
      };
    }), "no device is attached");

  table("sids", ["prefix", "behaviour", "~table", "#now", "~#bit/s", span(), "#errors"],
    state.sids.map((sid) => {
      const name = sidName(sid);
      return lostRow(name, [sid.prefix, sid.behaviour, String(sid.table), perSecond(name), bits(`${name} bytes`),
        spark(name), short(sid.errors)]);
    }), "there is no local SID");

  table("policies", ["policy", "#now", "~#bit/s", span(), "#errors"],
    state.policies.map((policy) => {
      const name = policyName(policy);
      return lostRow(name, [policy.encap.replace("seg6 mode ", ""), perSecond(name), bits(`${name} bytes`), spark(name),
        short(policy.errors)]);
    }), "no route has segments");

  table("labels", ["label", "#now", "#bit/s", span(), "#errors"],
    state.labels.map((label) => {
      const name = `label ${label.label}`;
      return lostRow(name, [String(label.label), perSecond(name), bits(`${name} bytes`), spark(name), short(label.errors)]);
    }), "no label has a route");

  table("tunnels", ["tunnel", "~kind", "state", "~local", "remote", "#in", "#out", "~" + span(), "~#errors"],
    state.links.filter(isTunnel).map((link) => {
      const name = `link ${link.name}`;
      const kind = link.tunnel.encap ? `${link.kind} in ${link.tunnel.encap}` : link.kind;
      return {
        cells: [link.name, kind, up(link), link.tunnel.local, link.tunnel.remote, bits(`${name} rx bytes`),
          bits(`${name} tx bytes`), spark(`${name} tx`), perSecond(`${name} errors`)],
        alarm: !link.up || grows(`${name} errors`),
      };
    }), "there is no tunnel");

  table("queues", ["device", "~handle", "kind", "~in", "#limit", "~#now", "#bit/s", "~" + span(), "#dropped", "~#waiting"],
    state.queues.map((queue) => {
      const name = `queue ${queue.device} ${queue.handle}`;
      return lostRow(name, [queue.device, queue.handle, queue.class ? `${queue.kind} class` : queue.kind, queue.parent,
        queue.rate === undefined ? "–" : `${short(queue.rate)}bit/s`, perSecond(name), bits(`${name} bytes`), spark(name),
        short(queue.drops), short(queue.queued)]);
    }), "no qdisc of the router's has been made");

  table("policers", ["policer", "#limit", "~#filters", "#now", "~#bit/s", span(), "#dropped"],
    state.policers.map((policer) => {
      const name = `policer ${policer.index}`;
      return lostRow(name, [name, policer.rate === undefined ? "–" : `${short(policer.rate)}bit/s`,
        String(policer.filters), perSecond(name), bits(`${name} bytes`), spark(name), short(policer.drops)]);
    }), "there is no policer");

  table("workers", ["worker", "~processor", "#now", span(), "~#sleeps", "#held", "~#free buffers"],
    state.workers.map((worker) => {
      const name = `worker ${worker.number}`;
      return {
        cells: [name, String(worker.processor ?? "–"), perSecond(name), spark(name), perSecond(`${name} sleeps`),
          short(worker.totals.held), short(worker.free_buffers)],
        alarm: worker.free_buffers === 0,
      };
    }), "there is no worker");
}

/** Columns of boxes: ports and tunnels to the left, the routing instance that they belong to, what is there to the right. */
function topology(state) {
  const svg = byId("topology");
  const WIDTH = 1150;
  const ROW = 46;
  const instances = [
    { name: "main", note: "no VRF" },
    ...state.links.filter((link) => link.kind === "vrf").map((link) => ({ name: link.name, note: `table ${link.table}`, table: link.table })),
  ];
  const instanceOf = (link) => Math.max(0, instances.findIndex((one) => one.name === link.master));
  const busiest = (objects, rate) =>
    [...objects].sort((a, b) => (rate(b) ?? 0) - (rate(a) ?? 0)).slice(0, SHOWN);
  const linkRate = (link) => (meter.rate(`link ${link.name} rx`) ?? 0) + (meter.rate(`link ${link.name} tx`) ?? 0);
  const node = (link, note) => ({
    name: link.name, note, up: link.up, to: instanceOf(link), rate: linkRate(link),
    text: `in ${bits(`link ${link.name} rx bytes`)}  out ${bits(`link ${link.name} tx bytes`)}`,
  });
  const ports = busiest(state.links.filter((link) => link.kind === "port"), linkRate)
    .map((link) => node(link, families(link).map((own) => own[0]).filter(Boolean).join("  ")));
  const tunnels = busiest(state.links.filter(isTunnel), linkRate)
    .map((link) => node(link, `${link.kind} → ${link.tunnel.remote}`));
  const inTable = (table) => Math.max(0, instances.findIndex((one) => one.table === table));
  const sids = busiest(state.sids, (sid) => meter.rate(sidName(sid))).map((sid) => ({
    name: sid.prefix, note: sid.behaviour, up: true, to: inTable(sid.table), rate: meter.rate(sidName(sid)),
    text: perSecond(sidName(sid)),
  }));
  const labels = busiest(state.labels, (label) => meter.rate(`label ${label.label}`)).map((label) => ({
    name: `label ${label.label}`, note: "", up: true, to: 0, rate: meter.rate(`label ${label.label}`),
    text: perSecond(`label ${label.label}`),
  }));
  const columns = [
    { x: 10, width: 290, groups: [["Ports", ports], ["Tunnels", tunnels]] },
    { x: 480, width: 150, groups: [["Routing", instances.map((one) => ({ ...one, up: true, text: "" }))]] },
    { x: 810, width: 330, groups: [["Local SIDs", sids], ["MPLS labels", labels]] },
  ];
  const shapes = [];
  const places = new Map();
  let height = 0;
  for (const { x, width, groups } of columns) {
    let y = 10;
    for (const [title, nodes] of groups.filter(([, nodes]) => nodes.length > 0)) {
      shapes.push(drawing("text", { class: "title", x, y: y + 12 }, title));
      y += 20;
      for (const one of nodes) {
        places.set(one, { x, y, width });
        shapes.push(drawing("rect", { class: `node ${one.up ? "up" : "down"}`, x, y, width, height: ROW - 8, rx: 5 }));
        shapes.push(drawing("text", { x: x + 8, y: y + 16 }, one.name));
        shapes.push(drawing("text", { class: "faint", x: x + width - 8, y: y + 16, "text-anchor": "end" }, one.note));
        shapes.push(drawing("text", { class: "faint", x: x + 8, y: y + 31 }, one.text));
        y += ROW;
      }
      y += 8;
    }
    height = Math.max(height, y);
  }
  const middle = [...places.entries()].filter(([, place]) => place.x === 480).map(([, place]) => place);
  const edges = [];
  for (const [one, place] of places) {
    const to = middle[one.to];
    if (one.to === undefined || to === undefined) continue;
    const left = place.x < to.x;
    const [x1, x2] = left ? [place.x + place.width, to.x] : [to.x + to.width, place.x];
    const [y1, y2] = [left ? place : to, left ? to : place].map((end) => end.y + (ROW - 8) / 2);
    const busy = (one.rate ?? 0) > 0;
    // A line is thicker by a step for each ten times as much.
    const stroke = busy ? 1 + Math.min(6, Math.log10(1 + one.rate)) : 1;
    const half = (x1 + x2) / 2;
    edges.push(drawing("path", {
      class: busy ? "edge busy" : "edge", "stroke-width": stroke.toFixed(1),
      d: `M${x1} ${y1} C${half} ${y1} ${half} ${y2} ${x2} ${y2}`,
    }));
  }
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  svg.replaceChildren(...edges, ...shapes);
}

function show(state) {
  byId("version").textContent = state.version;
  const place = [state.host, state.namespace].filter(Boolean).join(", namespace ");
  byId("place").textContent = place;
  document.title = [state.namespace ?? state.host, "Underpass"].filter(Boolean).join(" – ");
  const rate = (name) => `${short(meter.rate(name))}/s`;
  const left = Object.entries(state.left_out).filter(([, count]) => count > 0)
    .map(([kind, count]) => `; ${short(count)} more ${kind}, which are less busy`).join("");
  byId("totals").textContent = `in ${rate("received")}, out ${rate("sent")}, to the host ${rate("delivered")}, ` +
    `dropped ${rate("dropped")}, held ${short(state.totals.held)}${left}`;
  byId("warnings").replaceChildren(...(state.warnings ?? []).map((warning) => element("li", {}, warning)));
  tables(state);
  topology(state);
}

/** Headends and routes, while they are looked at: there may be many. */
const routing = {
  asked: 0,

  async refresh() {
    if (!byId("routing").open || performance.now() - this.asked < 4500) return;
    this.asked = performance.now();
    routeTables(await ask("/api/routes.json"));
  },
};

let latest = null;

async function turn() {
  latest = await ask("/api/state.json");
  meter.read(latest.time, countersOf(latest));
  await Promise.all([hour.refresh("/api/history.json"), routing.refresh()]);
  show(latest);
}

/** What was pressed is shown at once. */
async function again(refresh) {
  try {
    await refresh();
    if (latest !== null) show(latest);
  } catch {
    // The next turn says why.
  }
}

hour.button("hour", () => again(() => hour.refresh("/api/history.json")));
byId("routing").addEventListener("toggle", () => again(() => routing.refresh()));
everySecond(turn, "The router");
