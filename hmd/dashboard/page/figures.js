// SPDX-License-Identifier: MIT
// The charts: fast share and moves over time, memory by heat, and predicted runtime.
import { MARGIN, byteTicks, chart, key, niceTicks, path, timeTicks, when } from "./charts.js";
import { $, detailsTable, el, nothing, svg } from "./elements.js";
import { tierKind, tierName } from "./targets.js";
import { PAGE_BYTES, ago, bytes, clock, rate, seconds, share, short } from "./units.js";

function times(state) {
  const at = state.series.at_s, last = at[at.length - 1];
  const xs = at.map((s) => s - last);
  const low = Math.min(-30, Math.max(-state.window_s, xs.length ? xs[0] : 0));
  return { xs, low, gap: Math.max(3 * state.window_s / 300, 10 * (state.status ? state.status.tick_s : 1)) };
}

export function drawShare(state) {
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

export function drawMoves(state) {
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

export function drawCensus(status) {
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

export function drawSweep(sweep) {
  const host = $("sweep");
  if (!sweep) {
    $("sweep-hint").textContent = "To predict the runtime of a program by its fast memory, record it all-slow and all-fast, and start the page with both traces:";
    host.replaceChildren(el("p", {}, el("code", {}, "hmd dashboard --traces slow.hmdt fast.hmdt")));
    return;
  }
  const { steps, knee, within_5_percent: near } = sweep.sweep;
  $("sweep-hint").textContent = `Predicted from ${sweep.slow} and ${sweep.fast}, the hottest pages first, as by 'hmd estimate --sweep'. ` +
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
