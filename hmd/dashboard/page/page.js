// The page requests state.json once per second and draws it. Nothing that comes from the
// daemon is ever parsed as HTML: text goes into text nodes, numbers into attributes of shapes.
"use strict";

const POLL_MS = 1000;
const PATIENCE_MS = 5000;
const PAGE_BYTES = 4096;
const ROUNDS = 8; // that are shown; state.json has more

// ---- Units, as in hmd's tables -------------------------------------------------------------

function bytes(value) {
  if (value === null || value === undefined) return "-";
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return `${size.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}
const rate = (value) => (value === null ? "-" : `${bytes(value)}/s`);
const share = (value) => (value === null || value === undefined ? "-" : `${(value * 100).toFixed(1)} %`);
const count = (value) => value.toFixed(0).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");
const seconds = (value) => (Math.abs(value) >= 1 ? `${value.toFixed(3)} s` : `${(value * 1e3).toFixed(2)} ms`);
const short = (value) => (value === 0 ? "0" : value >= 100 ? count(value) : value >= 0.01 ? String(Number(value.toPrecision(3))) : value.toExponential(1));
const clock = (at_s) => new Date(at_s * 1000).toLocaleTimeString("en-GB");
const ago = (age_s) => (age_s < 0.5 ? "now" : age_s < 90 ? `${age_s.toFixed(0)} s ago` : `${(age_s / 60).toFixed(1)} min ago`);
function age(value) {
  const s = Math.floor(value);
  const two = (n) => String(n).padStart(2, "0");
  const hours = `${Math.floor((s % 86400) / 3600)}:${two(Math.floor((s % 3600) / 60))}:${two(s % 60)}`;
  return s >= 86400 ? `${Math.floor(s / 86400)} d ${hours}` : hours;
}

// ---- Elements ------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

// A column is [heading, class]; a row's first cell is its heading. Cells are texts or elements.
function fillTable(table, caption, columns, rows) {
  const head = columns.map(([text, kind]) => el("th", { scope: "col", class: kind || "" }, text));
  const body = rows.map((row) =>
    el("tr", {}, ...row.map((cell, i) =>
      el(i ? "td" : "th", i ? { class: columns[i][1] || "" } : { scope: "row" }, cell))));
  table.replaceChildren(
    ...(caption ? [el("caption", {}, caption)] : []),
    el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
  return table;
}

// A table that is made only while it is open, and kept where it was scrolled to.
const openTables = new Map();
function detailsTable(id, caption, columns, rows) {
  const details = $(id);
  const show = () => {
    if (!details.open) return;
    let box = details.querySelector(".scroll");
    if (!box) {
      box = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, el("table"));
      details.append(box);
    }
    fillTable(box.firstChild, caption, columns, rows());
  };
  if (!openTables.has(id)) details.addEventListener("toggle", () => openTables.get(id)());
  openTables.set(id, show);
  show();
}
const nothing = (text) => el("p", { class: "nothing" }, text);

// ---- Charts --------------------------------------------------------------------------------

const MARGIN = { left: 64, right: 10, top: 8, bottom: 22 };
const cursors = new Map();

function niceTicks(low, high, about) {
  const raw = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((n) => n * power >= raw) * power;
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) ticks.push(at);
  return ticks;
}
function byteTicks(low, high) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(-low, high, 1)) / 10));
  return niceTicks(low / unit, high / unit, 4).map((tick) => tick * unit);
}

// The frame of a chart: axes, and a cursor that pointer and arrow keys move over `xs`.
function chart(host, { label, xs, low, high, bottom, top, xTicks, yTicks, height = 190, read }) {
  const width = Math.max(host.clientWidth, 240);
  const right = width - MARGIN.right, floor = height - MARGIN.bottom;
  const x = (value) => MARGIN.left + ((value - low) / (high - low || 1)) * (right - MARGIN.left);
  const y = (value) => floor - ((value - bottom) / (top - bottom || 1)) * (floor - MARGIN.top);
  const shapes = svg("g");
  const cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: floor, visibility: "hidden" });
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  for (const [at, text] of yTicks) {
    drawn.append(svg("line", { class: at === 0 ? "axis" : "grid", x1: MARGIN.left, x2: right, y1: y(at), y2: y(at) }),
      svg("text", { x: MARGIN.left - 7, y: y(at) + 4, "text-anchor": "end" }, text));
  }
  xTicks.forEach(([at, text]) => {
    const middle = Math.min(Math.max(x(at), MARGIN.left), right);
    const anchor = middle > right - 24 ? "end" : "middle";
    drawn.append(svg("text", { x: middle, y: height - 5, "text-anchor": anchor }, text));
  });
  drawn.append(shapes, cursor);
  const legend = el("ul", { class: "legend" });
  host.replaceChildren(legend, drawn);
  const point = (index) => {
    cursors.set(host.id, index);
    const here = index !== null && index >= 0 && index < xs.length;
    cursor.setAttribute("visibility", here ? "visible" : "hidden");
    if (here) { cursor.setAttribute("x1", x(xs[index])); cursor.setAttribute("x2", x(xs[index])); }
    legend.replaceChildren(...read(here ? index : null));
  };
  host.setAttribute("aria-label", label);
  host.setAttribute("role", "group");
  host.setAttribute("tabindex", "0");
  host.onpointermove = (event) => {
    const at = event.clientX - host.getBoundingClientRect().left;
    let best = 0;
    xs.forEach((value, i) => { if (Math.abs(x(value) - at) < Math.abs(x(xs[best]) - at)) best = i; });
    point(xs.length ? best : null);
  };
  host.onpointerleave = host.onblur = () => point(null);
  host.onkeydown = (event) => {
    const now = cursors.get(host.id) ?? xs.length;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (next === undefined || !xs.length) return;
    event.preventDefault();
    legend.setAttribute("aria-live", "polite");
    point(Math.min(Math.max(next, 0), xs.length - 1));
  };
  point(cursors.get(host.id) ?? null);
  return { x, y, shapes, floor };
}
const key = (kind, name, value) => el("li", { class: kind }, `${name} `, el("b", {}, value));
const when = (text) => el("li", { class: "when" }, text);

// Points that are far apart, or not known, are not joined.
function path(xs, ys, x, y, gap) {
  let drawn = "", pen = false;
  xs.forEach((at, i) => {
    if (ys[i] === null) { pen = false; return; }
    const joined = pen && at - xs[i - 1] <= gap;
    drawn += `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(ys[i]).toFixed(1)}${joined ? "" : "h.01"}`;
    pen = true;
  });
  return drawn;
}
function timeTicks(low) {
  const minutes = -low / 60;
  return niceTicks(-minutes, 0, 5).map((m) => [m * 60, Math.abs(m) < 1e-9 ? "now" : minutes < 3 ? `\u2212${Math.round(-m * 60)} s` : `\u2212${Number((-m).toFixed(1))} min`]);
}
function times(state) {
  const at = state.series.at_s, last = at[at.length - 1];
  const xs = at.map((s) => s - last);
  const low = Math.min(-30, Math.max(-state.window_s, xs.length ? xs[0] : 0));
  return { xs, low, gap: Math.max(3 * state.window_s / 300, 10 * (state.status ? state.status.tick_s : 1)) };
}

function drawShare(state) {
  const host = $("share"), { xs, low, gap } = times(state);
  const one = state.series.targets.length === 1;
  const all = one ? [] : [{ name: "all targets", fast_share: state.series.fast_share }];
  const lines = [...all, ...state.series.targets].map((line, i) => ({ ...line, kind: `k${i + one}` }));
  if (!xs.length) return host.replaceChildren(nothing("No samples yet."));
  const frame = chart(host, {
    label: `Fast share over time; now ${lines.map((l) => `${l.name} ${share(l.fast_share.at(-1))}`).join(", ")}`,
    xs, low, high: 0, bottom: 0, top: 1, xTicks: timeTicks(low), height: 226,
    yTicks: [0, 0.25, 0.5, 0.75, 1].map((v) => [v, `${v * 100} %`]),
    read: (i) => [...lines.map((l) => key(l.kind, l.name, share(l.fast_share.at(i ?? -1)))), when(i === null ? "now" : ago(-xs[i]))],
  });
  for (const line of [...lines].reverse())
    frame.shapes.append(svg("path", { class: `line ${line.kind}`, d: path(xs, line.fast_share, frame.x, frame.y, gap) }));
  detailsTable("share-table", "Fast share by time", [["Time"], ...lines.map((l) => [l.name, "num"])], () =>
    xs.map((_, i) => [clock(state.series.at_s[i]), ...lines.map((l) => share(l.fast_share[i]))]).reverse());
}

function drawMoves(state) {
  const host = $("moves"), { xs, low } = times(state), series = state.series;
  const up = series.promoted_bytes_per_s, down = series.demoted_bytes_per_s;
  if (xs.length < 2) return host.replaceChildren(nothing("No data yet."));
  const top = Math.max(...up, 1024) * 1.05, bottom = -Math.max(...down, 1024) * 1.05;
  const frame = chart(host, {
    label: `Bytes moved per second over time; now ${rate(up.at(-1))} up, ${rate(down.at(-1))} down`,
    xs, low, high: 0, bottom, top, xTicks: timeTicks(low),
    yTicks: byteTicks(bottom, top).map((v) => [v, rate(Math.abs(v))]),
    read: (i) => [key("k-fast", "promoted", rate(up.at(i ?? -1))), key("k-slow", "demoted", rate(down.at(i ?? -1))), when(i === null ? "now" : ago(-xs[i]))],
  });
  xs.forEach((at, i) => {
    if (!i || up[i] === null) return;
    const left = Math.max(frame.x(xs[i - 1]), MARGIN.left), width = Math.max(frame.x(at) - left - 0.4, 0.8);
    if (up[i]) frame.shapes.append(svg("rect", { class: "fill k-fast", x: left, width, y: frame.y(up[i]), height: frame.y(0) - frame.y(up[i]) }));
    if (down[i]) frame.shapes.append(svg("rect", { class: "fill k-slow", x: left, width, y: frame.y(0), height: frame.y(-down[i]) - frame.y(0) }));
  });
  detailsTable("moves-table", "Bytes moved by time", [["Time"], ["Promoted", "num"], ["Demoted", "num"]], () =>
    xs.map((_, i) => [clock(series.at_s[i]), rate(up[i]), rate(down[i])]).reverse());
}

const tierKind = (tier, tiers) => (tier === 0 ? "fast" : tier === tiers - 1 ? "slow" : "middle");
const tierName = (status, tier) => `tier ${tier} (node ${status.tiers[tier].join(",")})`;

function drawCensus(status) {
  const host = $("census"), { first_log2: first, pages } = status.heat, tiers = pages.length;
  const bins = pages[0].map((_, bin) => pages.map((row) => row[bin] * PAGE_BYTES));
  const total = bins.map((bin) => bin.reduce((a, b) => a + b, 0));
  const used = total.map((v, i) => (v ? i : -1)).filter((i) => i >= 0);
  if (!used.length) return host.replaceChildren(nothing("Pages have not been counted yet: the daemon counts them every 10 seconds."));
  const from = used[0], to = used.at(-1), xs = [];
  for (let i = from; i <= to; i++) xs.push(i);
  const power = (i) => (i === 0 ? `below ${short(2 ** (first + 1))}` : `${short(2 ** (first + i))} and more`);
  const top = Math.max(...total) * 1.05;
  const whole = (i) => pages.map((_, t) => (i === null ? bins.reduce((sum, bin) => sum + bin[t], 0) : bins[xs[i]][t]));
  const frame = chart(host, {
    label: `Memory by heat and tier, ${xs.length} classes of heat`,
    xs, low: from - 0.5, high: to + 0.5, bottom: 0, top,
    xTicks: xs.filter((i) => (i - from) % Math.ceil(xs.length / 6) === 0).map((i) => [i, short(2 ** (first + i))]),
    yTicks: byteTicks(0, top).map((v) => [v, bytes(v)]),
    read: (i) => [...whole(i).map((v, t) => key(`k-${tierKind(t, tiers)}`, `tier ${t}`, bytes(v))),
      when(i === null ? "x: accesses per page and second" : `${power(xs[i])} accesses per second`)],
  });
  for (const i of xs) {
    let under = 0;
    for (let t = tiers - 1; t >= 0; t--) {
      const size = bins[i][t];
      if (size) frame.shapes.append(svg("rect", { class: `fill k-${tierKind(t, tiers)}`, x: frame.x(i - 0.5) + 1,
        width: Math.max(frame.x(i + 0.5) - frame.x(i - 0.5) - 2, 1), y: frame.y(under + size), height: frame.y(under) - frame.y(under + size) }));
      under += size;
    }
  }
  detailsTable("census-table", "Memory by heat and tier", [["Accesses per page and second"], ...pages.map((_, t) => [tierName(status, t), "num"])], () =>
    xs.map((i) => [power(i), ...bins[i].map(bytes)]));
}

function drawSweep(sweep) {
  const host = $("sweep");
  if (!sweep) {
    $("sweep-told").textContent = "To predict the runtime of a program by its fast memory, record it all-slow and all-fast, and start the page with both traces:";
    host.replaceChildren(el("p", {}, el("code", {}, "hmd dashboard --traces slow.hmdt fast.hmdt")));
    return;
  }
  const { steps, knee, within_5_percent: near } = sweep.sweep;
  $("sweep-told").textContent = `Predicted from ${sweep.slow} and ${sweep.fast}, the hottest pages first, as by 'hmd estimate --sweep'. ` +
    (knee ? `The knee is at ${bytes(knee.fast_bytes)}: ${knee.over_all_fast.toFixed(2)} times all fast. ` : "There is no knee. ") +
    `Within 5 % of all fast from ${bytes(near.fast_bytes)} on. ` + sweep.notes.map((note) => `Note: ${note}.`).join(" ");
  const xs = steps.map((s) => s.fast_bytes), ys = steps.map((s) => s.runtime_s), top = Math.max(...ys) * 1.1;
  const frame = chart(host, {
    label: `Predicted runtime by fast memory: ${seconds(ys[0])} with none, ${seconds(ys.at(-1))} with ${bytes(xs.at(-1))}`,
    xs, low: 0, high: xs.at(-1), bottom: 0, top, height: 240,
    xTicks: byteTicks(0, xs.at(-1)).map((v) => [v, bytes(v)]),
    yTicks: niceTicks(0, top, 5).map((v) => [v, top < 1 ? `${Number((v * 1e3).toPrecision(6))} ms` : `${Number(v.toPrecision(6))} s`]),
    read: (i) => (i === null ? [key("k-fast", "predicted runtime", `${seconds(ys[0])} to ${seconds(ys.at(-1))}`), when("x: fast memory for the hottest pages")]
      : [key("k-fast", "predicted runtime", seconds(ys[i])), when(`${bytes(xs[i])} fast, ${steps[i].over_all_fast.toFixed(3)} times all fast`)]),
  });
  frame.shapes.append(svg("path", { class: "line k-fast", d: path(xs, ys, frame.x, frame.y, Infinity) }));
  const marks = [["all slow", steps[0], "k0", "start"], ["all fast", steps.at(-1), "k0", "end"]];
  if (knee) marks.push(["knee", knee, "k-slow", "start"]);
  for (const [name, step, kind, anchor] of marks) {
    const at = [frame.x(step.fast_bytes), frame.y(step.runtime_s)];
    frame.shapes.append(svg("circle", { class: `fill ${kind}`, cx: at[0], cy: at[1], r: 4 }),
      svg("text", { class: "strong", x: at[0] + (anchor === "end" ? -4 : 6), y: at[1] + (anchor === "end" ? 18 : -8), "text-anchor": anchor }, `${name}: ${bytes(step.fast_bytes)}, ${seconds(step.runtime_s)}`));
  }
  $("sweep-table").hidden = false;
  detailsTable("sweep-table", "Predicted runtime by fast memory", [["Fast memory"], ["Runtime", "num"], ["Over all fast", "num"]], () =>
    steps.map((s) => [bytes(s.fast_bytes), seconds(s.runtime_s), s.over_all_fast.toFixed(3)]));
}

// ---- Heat maps -----------------------------------------------------------------------------

// Anchors of matplotlib's inferno and coolwarm (reversed), an eighth apart, as in hmd's pictures.
const INFERNO = ["000004", "210c4a", "57106e", "8a226a", "bc3754", "e45a31", "f98e09", "f9cb35", "fcffa4"];
const COOLWARM = ["b40426", "de604d", "f49a7b", "f5c4ad", "dddddd", "b8d0f9", "8db0fe", "6282ea", "3b4cc0"];
function palette(anchors) {
  const rgb = anchors.map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return (value) => {
    const at = Math.min(Math.max(value, 0), 1) * (rgb.length - 1), i = Math.min(Math.floor(at), rgb.length - 2);
    return `rgb(${rgb[i].map((c, k) => Math.round(c + (rgb[i + 1][k] - c) * (at - i))).join(",")})`;
  };
}
const inferno = palette(INFERNO), coolwarm = palette(COOLWARM);
let heatMap = null, heatAt = null;

function mapFrame(host) {
  const canvas = host.firstElementChild, scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(host.clientWidth * scale);
  canvas.height = Math.round(host.clientHeight * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const left = 92, right = host.clientWidth - 4, top = 2, floor = host.clientHeight - 20;
  const rows = heatMap.address.length, low = Math.min(-10, -heatMap.age_s[0]);
  return { pen, left, right, top, floor, rows, low,
    x: (s) => left + ((s - low) / -low) * (right - left),
    y: (row) => floor - (row / rows) * (floor - top) };
}
function drawMap(host, cells, colour) {
  const frame = mapFrame(host), { pen, x, y } = frame, style = getComputedStyle(document.body);
  const ages = heatMap.age_s, last = ages.length - 1;
  const usual = last ? (ages[0] - ages[last]) / last : 1;
  pen.fillStyle = style.getPropertyValue("--empty");
  pen.fillRect(frame.left, frame.top, frame.right - frame.left, frame.floor - frame.top);
  ages.forEach((old, column) => {
    // A cell is what was true from the moment before until this one.
    const begin = column ? Math.min(ages[column - 1], old + 3 * usual) : old + usual;
    const from = Math.max(x(-begin), frame.left), width = x(-old) - from;
    for (let row = 0; row < frame.rows; row++) {
      if (cells[row][column] === null) continue;
      pen.fillStyle = colour(cells[row][column]);
      pen.fillRect(from, y(row + 1), Math.max(width, 1) + 0.5, y(row) - y(row + 1) + 0.5);
    }
  });
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
  pen.textAlign = "right";
  const labels = Math.min(frame.rows, Math.floor((frame.floor - frame.top) / 34) + 1);
  for (let i = 0; i < labels; i++) {
    const row = labels > 1 ? Math.round((i * (frame.rows - 1)) / (labels - 1)) : 0;
    pen.fillText(heatMap.address[row], frame.left - 6, Math.max(y(row + 0.5) + 4, 10));
  }
  pen.font = "11.5px system-ui, 'DejaVu Sans', sans-serif";
  for (const [at, text] of timeTicks(frame.low)) {
    pen.textAlign = x(at) > frame.right - 20 ? "right" : "center";
    pen.fillText(text, Math.max(x(at), frame.left), host.clientHeight - 4);
  }
  if (heatAt) {
    pen.strokeStyle = style.getPropertyValue("--ink");
    pen.strokeRect(x(-ages[heatAt.column]) - 3, y(heatAt.row + 1), 6, Math.max(y(heatAt.row) - y(heatAt.row + 1), 3));
  }
}
function drawMaps() {
  $("pick").hidden = !heatMap;
  if (!heatMap) return;
  const hottest = Math.max(...heatMap.heat.flat(), 1e-9), coldest = hottest / 1000;
  heatAt = heatAt && heatAt.row < heatMap.address.length && heatAt.column < heatMap.age_s.length ? heatAt : null;
  drawMap($("heat"), heatMap.heat, (v) => inferno(Math.log(Math.max(v, coldest) / coldest) / Math.log(1000)));
  drawMap($("fast"), heatMap.fast, coolwarm);
  $("heat-low").textContent = short(coldest);
  $("heat-high").textContent = short(hottest);
  for (const [id, colour] of [["heat-scale", inferno], ["fast-scale", coolwarm]]) {
    const pen = $(id).getContext("2d");
    for (let i = 0; i < 120; i++) { pen.fillStyle = colour(i / 119); pen.fillRect(i, 0, 1, 10); }
  }
  if (heatAt) {
    const { row, column } = heatAt, heat = heatMap.heat[row][column];
    $("heat-read").textContent = `${heatMap.address[row]}, ${ago(heatMap.age_s[column])}: ` +
      (heat === null ? "no memory" : `heat ${short(heat)}, ${share(heatMap.fast[row][column])} in fast memory`);
  }
  detailsTable("heat-table", "Heat and tier by address, now and on average",
    [["From address"], ["Heat now", "num"], ["Heat, mean", "num"], ["Fast now", "num"], ["Fast, mean", "num"]], () =>
      heatMap.address.map((address, row) => [address, ...[[heatMap.heat, short], [heatMap.fast, share]].flatMap(([cells, told]) => {
        const known = cells[row].filter((v) => v !== null), now = cells[row].at(-1);
        return [now === null ? "-" : told(now), known.length ? told(known.reduce((a, b) => a + b) / known.length) : "-"];
      })]).reverse());
}
function followMaps() {
  for (const host of [$("heat"), $("fast")]) {
    host.onpointermove = (event) => {
      if (!heatMap) return;
      const frame = mapFrame(host), box = host.getBoundingClientRect();
      const old = -((event.clientX - box.left - frame.left) / (frame.right - frame.left)) * -frame.low - frame.low;
      let column = heatMap.age_s.findIndex((a) => a <= old);
      if (column < 0) column = heatMap.age_s.length - 1;
      const row = Math.floor(((frame.floor - (event.clientY - box.top)) / (frame.floor - frame.top)) * frame.rows);
      heatAt = { row: Math.min(Math.max(row, 0), frame.rows - 1), column };
      drawMaps();
    };
    host.onkeydown = (event) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
      if (!step || !heatMap) return;
      event.preventDefault();
      const at = heatAt ?? { row: 0, column: heatMap.age_s.length - 1 };
      heatAt = { row: Math.min(Math.max(at.row + step[0], 0), heatMap.address.length - 1),
        column: Math.min(Math.max(at.column + step[1], 0), heatMap.age_s.length - 1) };
      $("heat-read").setAttribute("aria-live", "polite");
      drawMaps();
    };
  }
}

// ---- Words ---------------------------------------------------------------------------------

const LEFT = {
  pending: ["not tried", "the migrate stage failed; the daemon's log says why"],
  already_there: ["were there already", "nothing to do"],
  would_move: ["would move", "a dry run"],
  deferred: ["left for later", "the budget of bytes or time was spent first"],
  blacklisted: ["wait", "they failed not long ago and are tried again later"],
  skipped: ["kept", "shared executable code stays where it is"],
  duplicate: ["named twice", "another row of the plan has the page"],
  not_present: ["gone", "unmapped, swapped out, or never touched (ENOENT)"],
  busy: ["busy", "pinned or isolated (EBUSY); they wait for another try"],
  no_memory: ["no room", "the target node was full (ENOMEM): more headroom helps"],
  shared: ["shared", "several processes map them; move_shared would move them (EACCES)"],
  unmovable: ["unmovable", "the mapping cannot migrate (EFAULT)"],
  gone: ["process gone", "it exited first (ESRCH)"],
  invalid: ["invalid", "a kernel thread, or flags that this kernel lacks (EINVAL)"],
  cpuset: ["cpuset", "the process's cpuset lacks the target node (EACCES)"],
  offline: ["offline", "the target node has no memory (ENODEV)"],
  permission: ["not permitted", "CAP_SYS_PTRACE or CAP_SYS_NICE is missing (EPERM)"],
  other: ["other", "an error that hmd does not know"],
};
const word = (reason) => (LEFT[reason] ?? [reason.replaceAll("_", " "), ""])[0];
const meaning = (reason) => (LEFT[reason] ?? ["", ""])[1];
const tierOf = (status, node) => status.tiers.findIndex((nodes) => nodes.includes(node));

function direction(status, flow) {
  const change = tierOf(status, flow.to_node) - tierOf(status, flow.from_node);
  return change < 0 ? "up" : change > 0 ? "down" : "across";
}
// The mean heat of all pages of a round that go one way; null where none do.
function meanHeat(status, flows, way) {
  const found = flows.filter((f) => direction(status, f) === way);
  const pages = found.reduce((sum, f) => sum + f.planned_pages, 0);
  return pages ? found.reduce((sum, f) => sum + f.heat * f.planned_pages, 0) / pages : null;
}
const manifold = (ratio) => (ratio >= 10 ? ratio.toFixed(0) : ratio.toFixed(1));
function why(status, round, flow) {
  const way = direction(status, flow);
  if (way === "across") return "to another node of its tier";
  const other = meanHeat(status, round.flows, way === "up" ? "down" : "up");
  if (way === "up") {
    if (other === null) return "hot, and there was room";
    if (other <= 0) return "hot; what made room for it had no heat";
    return `${manifold(flow.heat / other)} times as hot as what made room for it`;
  }
  if (other === null) return "nothing came up: room to keep free, or a limit";
  return flow.heat <= 0 ? "without heat: makes room for hot pages" : `makes room for pages ${manifold(other / flow.heat)} times as hot`;
}
function outcome(flow) {
  const rest = Object.entries(flow.left).sort((a, b) => b[1] - a[1]);
  return rest.length ? rest.map(([reason, pages]) => `${count(pages)} ${word(reason)}`).join(", ") : "all moved";
}

// ---- The parts of the page -----------------------------------------------------------------

function showFacts(status) {
  const facts = [
    ["Version", status.version], ["Process", String(status.pid)], ["Up", age(status.uptime_s)], ["Last tick", clock(status.started_s + status.uptime_s)],
    ["Ticks", `${count(status.ticks)} of ${Number(status.tick_s.toPrecision(6))} s`], ["Policy", status.policy],
    ["Sampler", `${status.sampler.name}, period ${count(status.sampler.period)}`], ["Configuration", status.config_file],
  ];
  $("facts").replaceChildren(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function showNotices(state) {
  const told = [];
  if (!state.reached) told.push(state.told);
  if (state.quiet_s) told.push(`The daemon answers, but has completed no tick for ${state.quiet_s} s: see its log.`);
  const status = state.status;
  if (status) {
    // Rings lose samples of all programs: those that other programs had count too.
    const { lost, samples, dropped } = status.sampler, taken = lost + samples + dropped;
    const failed = Object.entries(status.stage_failures).filter(([, n]) => n);
    if (status.dry_run) told.push("Dry run: no pages are moved.");
    if (status.tiers.length < 2) told.push("Only one memory tier: pages cannot be moved (hmd topology).");
    if (status.sampler.name === "faults") told.push("No PMU: page faults replace access samples, which is less precise (hmd doctor).");
    if (!status.reload.successful) told.push(`The last reload failed, the previous settings are in force: ${status.reload.error}`);
    if (failed.length) told.push(`Stages that failed since the start: ${failed.map(([stage, n]) => `${stage} ${count(n)}`).join(", ")}; see the daemon's log.`);
    if (lost > 0.01 * taken) told.push(`${share(lost / taken)} of the samples were lost: a longer period helps.`);
  }
  const list = $("notices");
  if ([...list.children].map((li) => li.textContent).join("\n") !== told.join("\n"))
    list.replaceChildren(...told.map((text) => el("li", {}, text)));
  list.hidden = !told.length;
}

function showKeys(state) {
  const { status, series } = state, moves = status.moves;
  const now = series.fast_share.findLast((v) => v !== null) ?? null;
  const figures = [
    ["Fast share", share(now), "of accesses, tier 0"],
    ["Promoted", bytes(moves.promoted_bytes), `${rate(series.promoted_bytes_per_s.at(-1) ?? null)} now`],
    ["Demoted", bytes(moves.demoted_bytes), `${rate(series.demoted_bytes_per_s.at(-1) ?? null)} now`],
    ["Not moved", bytes(moves.failed_pages * PAGE_BYTES), `of ${bytes(moves.planned_pages * PAGE_BYTES)} planned`],
    ["Samples", count(status.sampler.samples), `${count(status.sampler.lost)} lost`],
    ["The daemon itself", `${((status.cpu_s / Math.max(status.uptime_s, 1)) * 100).toFixed(1)} % CPU`, bytes(status.resident_bytes)],
  ];
  $("keys").replaceChildren(...figures.map(([name, value, more]) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: "value" }, value), el("dd", { class: "more" }, more))));
}

function bar(parts, whole, empty) {
  const drawn = svg("svg", { class: "bar", viewBox: "0 0 1000 18", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: empty, width: 1000, height: 18 }));
  let at = 0;
  for (const [kind, size] of parts) {
    const width = whole ? (1000 * size) / whole : 0;
    if (width > 0) drawn.append(svg("rect", { class: `fill ${kind}`, x: at, width: Math.max(width - 1.5, 0.8), height: 18 }));
    at += width;
  }
  return drawn;
}
function showTiers(status) {
  const targets = largest(status), tiers = status.tiers.length;
  const served = status.tiers.map((_, tier) => sum(targets.map((t) => t.accesses[tier])));
  $("tiers").replaceChildren(...status.tiers.map((_, tier) => {
    const sizes = targets.map((t) => t.resident_bytes[tier]), used = sizes.reduce((a, b) => a + b, 0);
    const whole = status.tier_bytes[tier];
    const parts = targets.map((t, i) => [`k${Math.min(i + 1, 6)}`, sizes[i], t.name]);
    return el("div", { class: "tier" },
      el("div", { class: `name mark-${tierKind(tier, tiers)}` },
        el("strong", {}, `Tier ${tier}${tiers > 1 && tier === 0 ? ", fastest" : ""} · node ${status.tiers[tier].join(", ")}`),
        el("span", { class: "num" }, `${bytes(used)} of ${bytes(whole)}`)),
      bar(parts, Math.max(whole, used), "empty"),
      el("ul", { class: "legend" }, ...parts.filter(([, size]) => size).slice(0, 6).map(([kind, size, name]) => key(kind, name, bytes(size)))),
      el("p", { class: "hint" }, `served ${share(sum(served) ? served[tier] / sum(served) : null)} of accesses since the start`));
  }));
}
const largest = (status) => [...status.targets].sort((a, b) => sum(b.resident_bytes) - sum(a.resident_bytes));
const sum = (values) => values.reduce((a, b) => a + b, 0);

function cells(row) {
  const whole = sum(row.resident_bytes), tiers = row.resident_bytes.length;
  const split = bar(row.resident_bytes.map((size, t) => [`k-${tierKind(t, tiers)}`, size]), whole, "empty");
  split.setAttribute("class", "bar split");
  return [...row.resident_bytes.map(bytes), split, share(row.fast_share), bytes(row.promoted_bytes), bytes(row.demoted_bytes), count(row.failed_pages)];
}
function showTargets(status) {
  const numbers = [...status.tiers.map((_, t) => [tierName(status, t), "num"]), ["Placement"], ["Fast share", "num"], ["Promoted", "num"], ["Demoted", "num"], ["Failed pages", "num"]];
  fillTable($("targets"), "", [["Target"], ["Processes", "num"], ...numbers], largest(status).map((t) => [t.name, count(t.process_count), ...cells(t)]));
  detailsTable("processes", "The largest processes", [["Process"], ["PID", "num"], ["Target"], ...numbers], () =>
    status.processes.map((p) => [p.name, String(p.pid), p.target, ...cells(p)]));
}

function showRounds(state) {
  const status = state.status, rows = [];
  for (const round of state.rounds.slice(0, ROUNDS))
    round.flows.forEach((flow, i) => {
      const way = direction(status, flow);
      rows.push([el("span", { class: i ? "same" : "" }, clock(round.at_s)), flow.target || "-",
        el("span", { class: way }, `${{ up: "▲ up", down: "▼ down", across: "↔ across" }[way]}, node ${flow.from_node} → ${flow.to_node}`),
        bytes(flow.planned_pages * PAGE_BYTES), bytes(flow.moved_pages * PAGE_BYTES), short(Math.max(flow.heat, 0)), why(status, round, flow), outcome(flow)]);
    });
  $("policy").textContent = `Policy ${status.policy} decides (hmd policy show ${status.policy}); heat is the mean of accesses per page and second.`;
  if (rows.length) fillTable($("rounds"), "", [["Time"], ["Target"], ["Direction"], ["Planned", "num"], ["Moved", "num"], ["Heat", "num"], ["Reason", "wrap"], ["Outcome of the planned pages", "wrap"]], rows);
  else $("rounds").replaceChildren(el("caption", {}, "No moves were planned in the last minutes."));
  const failures = Object.entries(status.moves.failures).sort((a, b) => b[1] - a[1]);
  $("failures").hidden = !failures.length;
  detailsTable("failures", "Pages that could not be moved, since the start", [["Reason"], ["Pages", "num"], ["Meaning", "wrap"]], () =>
    failures.map(([reason, pages]) => [word(reason), count(pages), meaning(reason)]));
}

function showPick(maps, status) {
  const pick = $("process"), keys = maps.map((map) => map.key).join();
  if (pick.dataset.keys === keys) return;
  const chosen = pick.value;
  pick.dataset.keys = keys;
  pick.replaceChildren(...maps.map((map) => el("option", { value: map.key }, `${map.name} (${map.pid})${map.target ? ` of ${map.target}` : ""}`)));
  const samples = (map) => status.processes.find((p) => `${p.pid}:${p.start_ticks}` === map.key)?.samples ?? 0;
  const busiest = maps.reduce((best, map) => (best && samples(best) >= samples(map) ? best : map), null);
  pick.value = maps.some((map) => map.key === chosen) ? chosen : (busiest?.key ?? "");
}

// ---- Asking --------------------------------------------------------------------------------

let shown = "", state = null, sweep = null, failures = 0, paused = false;
const asked = new Map();

async function get(path) {
  const answer = await fetch(path, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE_MS) });
  return answer.ok ? answer.text() : null;
}
function say(kind, text) {
  document.body.dataset.state = kind;
  if ($("state").textContent !== text) $("state").textContent = text;
}
function draw() {
  if (!state) return;
  document.body.dataset.known = state.status ? "yes" : "no";
  showNotices(state);
  if (state.status) {
    showFacts(state.status);
    showKeys(state);
    showTiers(state.status);
    showTargets(state.status);
    showRounds(state);
    drawCensus(state.status);
    showPick(state.maps, state.status);
  }
  drawShare(state);
  drawMoves(state);
  drawMaps();
}
async function look() {
  const text = await get("state.json");
  if (text === null) throw new Error("no state");
  if (text !== shown) {
    state = JSON.parse(text);
    shown = text;
    draw();
  }
  if (paused) return;
  if (state.reached) say("live", "Live");
  else say("lost", state.status ? "The daemon does not answer; trying again. The data below is old." : "No daemon answers; trying again.");
  document.title = state.reached ? "hmd" : "hmd: no daemon";
}
async function lookAtHeat() {
  const process = $("process").value;
  if (!process) return;
  const path = `heat.json?process=${encodeURIComponent(process)}`;
  $("heat-link").href = path;
  const text = await get(path);
  if (text === null || asked.get("heat") === text) return;
  asked.set("heat", text);
  heatMap = JSON.parse(text);
  drawMaps();
}
async function keepLooking() {
  if (!paused && !document.hidden) {
    try {
      await look();
      await lookAtHeat();
      failures = 0;
    } catch {
      failures += 1;
      shown = "";
      say("lost", "hmd dashboard does not answer; trying again. The data below is old.");
    }
  }
  setTimeout(keepLooking, Math.min(POLL_MS * 2 ** failures, 8000));
}
async function begin() {
  followMaps();
  $("process").onchange = () => { asked.delete("heat"); heatAt = null; lookAtHeat().catch(() => {}); };
  $("pause").onclick = () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    if (paused) say("paused", "Paused: the data is not updated.");
  };
  drawMaps();
  keepLooking();
  try { sweep = JSON.parse((await get("sweep.json")) ?? "null"); } catch { sweep = null; }
  drawSweep(sweep);
  const redraw = () => { draw(); drawSweep(sweep); };
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redraw);
}
begin();
