// What is wider than its box (on a phone: formulas, code, tables) first gets a smaller type, if that
// is enough; else it scrolls, says so by a faded edge, and takes the keyboard.
(() => {
  const SMALLEST = 0.75; // of the usual type of a formula, which is larger than that of the text
  const FORMULAS = "article .math mjx-container";
  const BOXES =
    "article :is(pre, .deq-scroll, .pst-scrollable-table-container, .cell_output .text_html)";

  // Of a formula: what a screen reader reads lies in the box too, and would count.
  const width = (box) =>
    box.querySelector(":scope > mjx-math")?.getBoundingClientRect().width ?? box.scrollWidth;

  // The type of a formula shrinks as far as it may, from the size that MathJax has given it.
  const shrink = () => {
    for (const box of document.querySelectorAll("[data-deq-size]")) {
      box.style.fontSize = box.dataset.deqSize;
      delete box.dataset.deqSize;
    }
    const sizes = [...document.querySelectorAll(FORMULAS)].map((box) => [
      box,
      box.clientWidth,
      width(box),
    ]);
    for (const [box, room, need] of sizes) {
      if (!room || need <= room + 1) continue; // a box knows its width in whole pixels
      box.dataset.deqSize = box.style.fontSize;
      const usual = parseFloat(box.style.fontSize) || 100;
      box.style.fontSize = `${usual * Math.max(SMALLEST, (0.99 * room) / need)}%`;
    }
  };

  const NAMES = [
    ["mjx-container", "Formula"],
    [".highlight pre", "Code"],
    [".deq-scroll, .pst-scrollable-table-container", "Table"],
    ["pre, .text_html", "Output"],
  ];

  const edges = (box) => {
    box.classList.toggle("deq-more-left", box.scrollLeft > 1);
    box.classList.toggle(
      "deq-more-right",
      box.scrollLeft + box.clientWidth < box.scrollWidth - 1,
    );
  };

  // Marked by us, so that it can be unmarked when there is room again.
  const offer = (box, wide) => {
    if (wide && !box.classList.contains("deq-wide")) {
      box.classList.add("deq-wide");
      if (!box.hasAttribute("tabindex")) {
        box.tabIndex = 0;
        box.dataset.deqTab = "";
      }
      if (!box.hasAttribute("aria-label") && !box.matches("mjx-container")) {
        const [, name] = NAMES.find(([selector]) => box.matches(selector));
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", `${name}, scrolls sideways`);
        box.dataset.deqName = "";
      }
      box.addEventListener("scroll", () => edges(box), { passive: true });
    } else if (!wide && box.classList.contains("deq-wide")) {
      box.classList.remove("deq-wide", "deq-more-left", "deq-more-right");
      if ("deqTab" in box.dataset) box.removeAttribute("tabindex");
      if ("deqName" in box.dataset) {
        box.removeAttribute("role");
        box.removeAttribute("aria-label");
      }
      delete box.dataset.deqTab;
      delete box.dataset.deqName;
    }
    if (wide) edges(box);
  };

  const mark = () => {
    shrink();
    const boxes = [...document.querySelectorAll(`${BOXES}, ${FORMULAS}`)].map((box) => [
      box,
      box.clientWidth > 0 &&
        width(box) > box.clientWidth + 1 &&
        getComputedStyle(box).overflowX !== "visible",
    ]);
    for (const [box, wide] of boxes) offer(box, wide);
  };

  let waiting = 0;
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(mark);
  };

  document.addEventListener("DOMContentLoaded", () => {
    const article = document.querySelector("article");
    if (!article) return;
    new ResizeObserver(soon).observe(article); // also when something unfolds
    window.addEventListener("load", () => {
      Promise.resolve(window.MathJax?.startup?.promise).then(soon);
      document.fonts.ready.then(soon);
    });
  });
})();
