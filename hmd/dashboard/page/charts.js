// SPDX-License-Identifier: MIT
// The frame of a chart with its axes, cursor and legend, and lines of points.
import { el, svg } from "./elements.js";

export const MARGIN = { left: 64, right: 10, top: 8, bottom: 22 };
const cursors = new Map();

export function niceTicks(low, high, about) {
  const raw = (high - low) / about || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((n) => n * power >= raw) * power;
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) ticks.push(at);
  return ticks;
}
export function byteTicks(low, high) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(-low, high, 1)) / 10));
  return niceTicks(low / unit, high / unit, 4).map((tick) => tick * unit);
}

// The frame of a chart: axes, and a cursor that pointer and arrow keys move over `xs`.
export function chart(host, { label, xs, low, high, bottom, top, xTicks, yTicks, height = 190, read }) {
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
export const key = (kind, name, value) => el("li", { class: kind }, `${name} `, el("b", {}, value));
export const when = (text) => el("li", { class: "when" }, text);

// Points that are far apart, or not known, are not joined.
export function path(xs, ys, x, y, gap) {
  let drawn = "", pen = false;
  xs.forEach((at, i) => {
    if (ys[i] === null) { pen = false; return; }
    const joined = pen && at - xs[i - 1] <= gap;
    drawn += `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(ys[i]).toFixed(1)}${joined ? "" : "h.01"}`;
    pen = true;
  });
  return drawn;
}
export function timeTicks(low) {
  const minutes = -low / 60;
  return niceTicks(-minutes, 0, 5).map((m) => [m * 60, Math.abs(m) < 1e-9 ? "now" : minutes < 3 ? `\u2212${Math.round(-m * 60)} s` : `\u2212${Number((-m).toFixed(1))} min`]);
}
