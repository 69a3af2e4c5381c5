// Long lists a page at a time: the page's nodes are all there are, so ten thousand items cost what fifty do.

import { button, element, say } from "./nodes.js";
import { count } from "./words.js";

export const PAGE = 50;

// `what` names the items; `turn` is called after a page was turned, to show again. Put `node` where its buttons belong.
export function makePager(what, turn) {
  const node = element("nav", "pager");
  node.setAttribute("aria-label", `Pages of ${what}`);
  let at = 0;
  const go = (step) => () => {
    at += step;
    turn();
    if (document.activeElement.disabled) node.querySelector("button:enabled")?.focus();
  };
  const before = node.appendChild(button("Previous", "", go(-1)));
  const where = node.appendChild(element("span", "quiet"));
  const after = node.appendChild(button("Next", "", go(1)));
  return {
    node,
    first: () => { at = 0; },
    // Those of `items` that are on the page.
    page(items) {
      const last = Math.max(0, Math.ceil(items.length / PAGE) - 1);
      at = Math.min(Math.max(0, at), last);
      const from = at * PAGE;
      const shown = items.slice(from, from + PAGE);
      node.hidden = last === 0;
      say(where, `${count(from + 1)}–${count(from + shown.length)} of ${count(items.length)}`);
      before.disabled = at === 0;
      after.disabled = at === last;
      return shown;
    },
  };
}
