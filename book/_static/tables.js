// Long tables as tools: the ledger and the list of errata can be filtered and sorted.
// Without this script they are plain tables.
document.addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table.deq-ledger, table.deq-errata")];
  if (!tables.length) return;
  const heads = [...tables[0].tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
  const text = (row, k) => row.cells[k].textContent.trim();

  // --- Filter: words, and a choice in each column whose values are few.
  const bar = document.createElement("form");
  bar.className = "deq-filter";
  bar.addEventListener("submit", (event) => event.preventDefault());
  const conditions = [];
  function field(name, control) {
    const label = document.createElement("label");
    label.append(name + " ", control);
    bar.append(label);
    control.addEventListener("input", apply);
  }
  const words = document.createElement("input");
  words.type = "search";
  conditions.push((row) => {
    const all = row.textContent.toLowerCase();
    return words.value.toLowerCase().split(/\s+/).every((word) => all.includes(word));
  });
  field("Words", words);
  const shortened = { Source: (t) => t.split(",")[0], Status: (t) => t.split(":")[0].trim(), entry: (t) => t.split("-")[0], kind: (t) => t };
  heads.forEach((name, k) => {
    if (!shortened[name]) return;
    const value = (row) => shortened[name](text(row, k));
    const select = document.createElement("select");
    select.append(new Option("all", ""));
    [...new Set(rows.map(value))].sort().forEach((one) => select.append(new Option(one, one)));
    conditions.push((row) => !select.value || value(row) === select.value);
    field(name === "entry" ? "Source" : name[0].toUpperCase() + name.slice(1), select);
  });
  const told = document.createElement("output");
  bar.append(told);
  const first = tables[0].closest(".deq-scroll") || tables[0];
  const anchor = tables.length > 1 ? first.parentElement.querySelector(".rubric") || first : first;
  anchor.before(bar);

  function apply() {
    let shown = 0;
    rows.forEach((row) => {
      row.hidden = !conditions.every((holds) => holds(row));
      shown += row.hidden ? 0 : 1;
    });
    tables.forEach((table) => {
      const none = [...table.tBodies[0].rows].every((row) => row.hidden);
      const box = table.closest(".deq-scroll") || table;
      box.hidden = none && tables.length > 1;
      // the heading of a chapter, and its totals, go with its table
      if (tables.length > 1) {
        for (let k = 0, at = box.previousElementSibling; k < 2 && at && at !== bar; k += 1, at = at.previousElementSibling) at.hidden = none;
      }
    });
    told.textContent = `${shown} of ${rows.length}`;
  }

  // --- Sort: a click on a heading, numbers as numbers.
  tables.forEach((table) => {
    [...table.tHead.rows[0].cells].forEach((cell, k) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const down = cell.getAttribute("aria-sort") === "ascending";
        [...cell.parentElement.cells].forEach((other) => other.removeAttribute("aria-sort"));
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => {
          const t = text(row, k);
          const number = t === "∞" ? Infinity : parseFloat(t);
          const share = t.match(/^(\d+)\/(\d+)/);
          return share ? share[1] / share[2] : Number.isNaN(number) || /[a-z]/i.test(t[0]) ? t : number;
        };
        const sorted = [...table.tBodies[0].rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
          return down ? -order : order;
        });
        table.tBodies[0].append(...sorted);
      });
    });
  });

  // --- A link to an entry opens what is folded in it.
  function unfold() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const section = target.matches("section") ? target : target.closest("section");
    section?.querySelectorAll(":scope > details").forEach((details) => { details.open = true; });
  }
  window.addEventListener("hashchange", unfold);
  unfold();
  apply();
});
