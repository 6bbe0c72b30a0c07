// SPDX-License-Identifier: MIT
// The maps of a process: heat and tier by address and time.
import { timeTicks } from "./charts.js";
import { $, detailsTable, el } from "./elements.js";
import { ago, share, short } from "./units.js";

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
export function drawMaps() {
  $("pick").hidden = !heatMap;
  if (!heatMap) return;
  const any = Math.max(...heatMap.heat.flat(), 0), hottest = Math.max(any, 1e-9), coldest = hottest / 1000;
  heatAt = heatAt && heatAt.row < heatMap.address.length && heatAt.column < heatMap.age_s.length ? heatAt : null;
  drawMap($("heat"), heatMap.heat, (v) => inferno(Math.log(Math.max(v, coldest) / coldest) / Math.log(1000)));
  drawMap($("fast"), heatMap.fast, coolwarm);
  $("heat-low").textContent = any ? short(coldest) : "";
  $("heat-high").textContent = any ? short(hottest) : "no samples yet";
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
      heatMap.address.map((address, row) => [address, ...[[heatMap.heat, short], [heatMap.fast, share]].flatMap(([cells, format]) => {
        const known = cells[row].filter((v) => v !== null), now = cells[row].at(-1);
        return [now === null ? "-" : format(now), known.length ? format(known.reduce((a, b) => a + b) / known.length) : "-"];
      })]).reverse());
}
export function followMaps() {
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

// Draw another map from now on.
export function showHeat(map) {
  heatMap = map;
  drawMaps();
}

// Point at no cell.
export function leaveCell() {
  heatAt = null;
}

export function showPick(maps, status) {
  const pick = $("process"), keys = maps.map((map) => map.key).join();
  if (pick.dataset.keys === keys) return;
  const chosen = pick.value;
  pick.dataset.keys = keys;
  pick.replaceChildren(...maps.map((map) => el("option", { value: map.key }, `${map.name} (${map.pid})${map.target ? ` of ${map.target}` : ""}`)));
  const samples = (map) => status.processes.find((p) => `${p.pid}:${p.start_ticks}` === map.key)?.samples ?? 0;
  const busiest = maps.reduce((best, map) => (best && samples(best) >= samples(map) ? best : map), null);
  pick.value = maps.some((map) => map.key === chosen) ? chosen : (busiest?.key ?? "");
}
