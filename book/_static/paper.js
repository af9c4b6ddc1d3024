// Before the book is printed (book/_ext/printing.py): set the formulas, make what is too wide
// smaller, measure whether anything still sticks out, and leave a page that needs no script.
(() => {
  const settings = JSON.parse(document.getElementById("settings").textContent);
  const wider = (element, width) => element.getBoundingClientRect().width > width + 0.5;
  const smallest = 0.6; // of the usual size of type
  const low = 260; // pixels, about a quarter of a page

  // Formulas do not break, so a wide one gets a smaller type; its number needs room beside it.
  const shrinkFormulas = () => {
    for (const box of document.querySelectorAll("div.math")) {
      const number = box.querySelector(".eqno");
      const room = box.clientWidth - (number ? 2 * number.offsetWidth + 8 : 0);
      const full = box.clientWidth - (number ? number.offsetWidth + 8 : 0);
      const widest = Math.max(
        0,
        ...[...box.querySelectorAll("mjx-math")].map((m) => m.getBoundingClientRect().width),
      );
      if (number && widest > room) {
        box.style.paddingRight = `${number.offsetWidth + 8}px`; // centred in what is left
      }
      if (widest > full) box.style.fontSize = `${Math.floor((99 * full) / widest)}%`;
    }
    for (const formula of document.querySelectorAll("span.math mjx-container")) {
      const room = formula.closest("p, td, th, li, dd, figcaption, div").clientWidth;
      const width = formula.getBoundingClientRect().width;
      if (room > 0 && width > room && !formula.closest("table")) {
        formula.style.fontSize = `${Math.floor((99 * room) / width)}%`;
      }
    }
  };

  // Words of a table break, formulas and code in it may not: then its type gets smaller, by steps.
  const shrinkTables = () => {
    for (const table of document.querySelectorAll("table")) {
      const width = table.parentElement.clientWidth;
      const size = parseFloat(getComputedStyle(table).fontSize);
      for (let part = 0.95; wider(table, width) && part >= smallest; part -= 0.05) {
        table.style.fontSize = `${size * part}px`;
      }
    }
  };

  // A short piece of code or panel is not cut in two; a long one may be.
  const keepTogether = () => {
    for (const box of document.querySelectorAll(".cell_input, .doctest, .deq-evidence, .exercise")) {
      if (box.offsetHeight < low) box.classList.add("low");
    }
  };

  // What begins or ends outside the text, or outside its cell, would be cut off or run into others.
  const outside = () => {
    const page = document.body.getBoundingClientRect();
    const found = [];
    for (const element of document.body.querySelectorAll("*")) {
      const box = element.getBoundingClientRect();
      if (!box.width || !box.height) continue;
      const cell = element.matches("td, th") ? element.scrollWidth - element.clientWidth : 0;
      const by = Math.round(Math.max(box.right - page.right, page.left - box.left, cell));
      if (by > 1) {
        const sheet = element.closest(".sheet")?.id ?? "";
        found.push(`${sheet}: ${element.tagName.toLowerCase()} by ${by} px: ` +
          element.textContent.trim().slice(0, 60));
      }
    }
    return found;
  };

  // Rules that a script adds to a style are not in its text, which is all that is kept.
  const keepStyles = () => {
    for (const style of document.querySelectorAll("style")) {
      style.textContent = [...style.sheet.cssRules].map((rule) => rule.cssText).join("\n");
    }
  };

  const finish = async () => {
    await MathJax.startup.defaultPageReady();
    await document.fonts.ready;
    // The formulas once more, for screen readers: unseen, but a width that the printer counts.
    for (const copy of document.querySelectorAll("mjx-assistive-mml")) copy.remove();
    shrinkFormulas();
    shrinkTables();
    keepTogether();
    const report = {
      faults: [...document.querySelectorAll("mjx-merror")].map((e) => e.textContent),
      formulas: document.querySelectorAll("mjx-container").length,
      images: [...document.images].filter((i) => !i.naturalWidth).map((i) => i.src),
      fonts: [...document.fonts].filter((f) => f.status === "error").map((f) => f.family),
      outside: outside(),
    };
    keepStyles();
    for (const script of document.querySelectorAll("script")) script.remove();
    const note = document.createElement("script");
    note.type = "application/json";
    note.id = "report";
    note.textContent = JSON.stringify(report).replaceAll("<", "\\u003c");
    document.head.append(note);
  };

  window.MathJax = {
    ...settings,
    options: {
      ...settings.options,
      enableAssistiveMml: false,
      enableMenu: false,
    },
    startup: { pageReady: finish },
  };
})();
