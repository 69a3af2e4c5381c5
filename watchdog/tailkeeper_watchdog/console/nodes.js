// Nodes of the page. Everything is set as text, never as markup, because names and reasons come from engines and people;
// nodes are kept and changed in place, so that nothing jumps under the reader's eye, finger or keyboard.

import { unknown } from "./words.js";

export const $ = (id) => document.getElementById(id);

export function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (!unknown(text)) node.textContent = text;
  return node;
}

export function say(node, text, className) {
  if (node.textContent !== text) node.textContent = text;
  if (className !== undefined && node.className !== className) node.className = className;
}

export function button(text, className, click) {
  const node = element("button", className, text);
  node.type = "button";
  node.addEventListener("click", click);
  return node;
}

// One child of `parent` per item, in order; a child whose key is still there is kept. No two items may have one key.
export function keyed(parent, items, keyOf, make, fill) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  items.forEach((item, at) => {
    const key = keyOf(item);
    let node = known.get(key);
    known.delete(key);
    if (!node) {
      node = make(item);
      node.dataset.key = key;
    }
    fill(node, item);
    if (parent.children[at] !== node) parent.insertBefore(node, parent.children[at] || null);
  });
  for (const node of known.values()) node.remove();
}

// By its place: two of them may say the same.
export const lines = (parent, texts) => keyed(parent, texts.map((text, at) => ({ text, at })), (line) => String(line.at),
  () => element("li"), (node, line) => say(node, line.text));

export function meter() {
  const node = element("span", "meter");
  node.fill = node.appendChild(element("i"));
  return node;
}

// A row of a table; on a phone its cells stand under each other, each with its column's name. The first names the row.
export function makeRow(labels, classes) {
  const row = element("tr");
  row.setAttribute("role", "row");
  row.cells_ = labels.map((label, i) => {
    const cell = row.appendChild(element(i === 0 ? "th" : "td", classes[i]));
    cell.dataset.label = label;
    cell.setAttribute("role", i === 0 ? "rowheader" : "cell");
    if (i === 0) cell.scope = "row";
    return cell;
  });
  row.parts = row.cells_.map((cell) => cell.appendChild(element("span")));
  return row;
}

// A whole table with its head, for places that are made when they are needed.
export function makeTable(labels, title) {
  const region = element("div", "scroll bare");
  region.tabIndex = 0;
  region.setAttribute("role", "group");
  region.setAttribute("aria-label", title);
  const table = region.appendChild(element("table"));
  table.setAttribute("role", "table");
  const head = table.appendChild(element("thead"));
  head.setAttribute("role", "rowgroup");
  const row = head.appendChild(element("tr"));
  row.setAttribute("role", "row");
  for (const label of labels) {
    const cell = row.appendChild(element("th", null, label));
    cell.scope = "col";
    cell.setAttribute("role", "columnheader");
  }
  const body = table.appendChild(element("tbody"));
  body.setAttribute("role", "rowgroup");
  return { region, body };
}
