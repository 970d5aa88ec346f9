/* The faults of a page of the site as it is laid out, and how many elements were checked. */
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const first = (element) => element.textContent.trim().split("\n")[0].slice(0, 70);
const box = (element) => element.getBoundingClientRect();

/* Every word of an element, as a range. */
function words(element, word) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    for (const match of node.data.matchAll(word)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      found.push(range);
    }
  }
  return found;
}

const areBroken = (ranges) => ranges.filter((range) => range.getClientRects().length > 1).map(String);
const broken = (element, word) => areBroken(words(element, word));

/* Is something else responsible for an element that reaches beyond the screen: a box that scrolls? */
function isInScroller(element) {
  for (let e = element.parentElement; e !== document.body; e = e.parentElement) {
    if (["auto", "scroll"].includes(getComputedStyle(e).overflowX)) return true;
  }
  return false;
}

function isClipped(scroller) {
  const outer = box(scroller);
  const end = outer.left + Math.max(scroller.scrollWidth, outer.width);
  return all("math, math *", scroller).some((part) => {
    const inner = box(part);
    return inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1 || inner.left < outer.left - 1 || inner.right > end + 1;
  });
}

function overlap(a, b) {
  const [p, q] = [box(a), box(b)];
  return p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1;
}

const page = document.documentElement;
const screen = page.clientWidth;
const code = all(".md-content pre > code").filter((e) => e.offsetParent);
const equations = all(".equation > div");
const heads = all(".md-content th");
const names = all(".md-content td code").filter((e) => !e.closest("pre"));
const buttons = all(".md-code__nav").filter((e) => e.offsetParent);
const diagrams = all(".diagram");
const intervals = words(document.querySelector(".md-content"), /[\[(][-+−\d.]+(,| to)\s[-+−\d.]+[\])]|[-+−\d.]+\s?%/g)
  .filter((range) => !range.startContainer.parentElement.closest("code"));
const scrolls = (e) => e.scrollWidth > e.clientWidth + 1;

return {
  seen: {
    code: code.length, equations: equations.length, heads: heads.length, names: names.length, buttons: buttons.length,
    diagrams: diagrams.length, intervals: intervals.length
  },
  faults: {
    "page is wider than the screen": scrolls(page) ? [`${page.scrollWidth} > ${screen}`] : [],
    "sticks out": all(".md-content *").filter((e) => box(e).right > screen + 1 && !isInScroller(e)).map(first),
    "code scrolls": code.filter(scrolls).map(first),
    "head is broken within a word": heads.flatMap((e) => broken(e, /[^\s\/–-]+/g)),  // "mean-squared" may be
    "code of a table is broken within a word": names.flatMap((e) => broken(e, /\S+/g)),
    "interval or percentage is broken": areBroken(intervals),
    "equation is clipped": equations.filter(isClipped).map(first),
    "equation scrolls": equations.filter(scrolls).map(first),
    "button lies on code":
      buttons.filter((button) => overlap(button, button.parentElement.querySelector("code"))).map((e) => first(e.parentElement)),
    "code has no button": code.filter((e) => !e.parentElement.querySelector(".md-code__nav")).map(first),
    "labels of a diagram overlap": diagrams.flatMap((diagram) => {
      const labels = all("text", diagram);
      return labels.flatMap((a, i) => labels.slice(i + 1).filter((b) => overlap(a, b)).map((b) => `${first(a)} / ${first(b)}`));
    }),
    "label leaves its diagram": diagrams.flatMap((diagram) => {
      const outer = box(diagram);
      return all("text", diagram).filter((e) => box(e).left < outer.left || box(e).right > outer.right + 1).map(first);
    })
  }
};
