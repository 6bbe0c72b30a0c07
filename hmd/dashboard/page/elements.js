// SPDX-License-Identifier: MIT
// Elements and tables. Nothing is ever parsed as HTML: text goes into text nodes, numbers into
// attributes of shapes.

export const $ = (id) => document.getElementById(id);
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
export const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

// A column is [heading, class]; a row's first cell is its heading. Cells are texts or elements.
export function fillTable(table, caption, columns, rows) {
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
export function detailsTable(id, caption, columns, rows) {
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
export const nothing = (text) => el("p", { class: "nothing" }, text);
