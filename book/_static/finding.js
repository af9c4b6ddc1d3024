// The search page: titles first, then places whose words fit, by pagefind where it can be loaded.
document.addEventListener("DOMContentLoaded", async () => {
  const query = (new URLSearchParams(location.search).get("q") || "").trim();
  const old = document.getElementById("search-results");
  if (!query || !old) return;
  const root = document.documentElement.dataset.content_root || "./";
  const list = document.createElement("ol");
  list.className = "deq-found";
  const told = document.createElement("p");
  told.className = "deq-found-count";
  told.setAttribute("role", "status");
  old.before(told, list);

  const fold = (text) => text.toLowerCase().normalize("NFKD").replace(/[\u0300-\u036f]/g, "");
  const asked = fold(query).split(/\s+/);
  const RANK = { page: 0, section: 1, theorem: 1, lemma: 1, proposition: 1, definition: 1, algorithm: 1, corollary: 1, assumption: 1, observation: 1, term: 1.5, exercise: 3, package: 3.5, claim: 4 };

  // How well a title fits: the whole query as words, then all words, then beginnings of words.
  function fit(title) {
    const text = fold(title);
    const words = text.split(/[^\p{L}\p{N}.]+/u).map((w) => w.replace(/\.$/, ""));
    const whole = asked.join(" ");
    if (text === whole || words.join(" ") === whole) return 0;
    if (` ${words.join(" ")} `.includes(` ${whole} `)) return 1;
    if (asked.every((a) => words.includes(a))) return 2;
    if (asked.every((a) => a.length > 2 && words.some((w) => w.startsWith(a)))) return 3;
    return null;
  }
  // Chapters before what surrounds them; the reference of the package is for those who ask by name.
  const weight = (one) =>
    one.fit + (RANK[one.kind] ?? 2) + (one.url.startsWith("book/reference") ? 2 : one.url.startsWith("book/errata") ? 1 : 0);
  const titles = (window.deqTitles || [])
    .map(([kind, title, page, url], order) => ({ kind, title, page, url, order, fit: fit(title) }))
    .filter((one) => one.fit !== null)
    .sort((a, b) => weight(a) - weight(b) || a.order - b.order);
  const shown = new Set();

  function show(one, excerpt) {
    if (shown.has(one.url)) return;
    shown.add(one.url);
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = root + one.url;
    link.textContent = one.title;
    const where = document.createElement("span");
    where.className = "deq-found-where";
    where.textContent = one.kind === "page" ? "" : ` ${one.kind} in ${one.page}`;
    item.append(link, where);
    if (excerpt) {
      const text = document.createElement("p");
      text.innerHTML = excerpt; // pagefind's: escaped text with <mark>
      item.append(text);
    }
    list.append(item);
  }
  const count = () => {
    told.textContent = shown.size ? `${shown.size} places for “${query}”.` : `Nothing was found for “${query}”.`;
  };

  titles.slice(0, 12).forEach((one) => show(one, ""));
  count();
  if (!location.protocol.startsWith("http")) return; // no fetch from files: Sphinx's results follow
  try {
    const pagefind = await import(new URL(root + "pagefind/pagefind.js", location.href).href);
    await pagefind.options({ excerptLength: 24 });
    const found = await pagefind.search(query);
    for (const stub of found.results.slice(0, 25)) {
      const data = await stub.data();
      const { title, kind, page, place: url } = data.meta;
      show({ title, kind, page, url }, data.excerpt);
    }
    count();
    old.hidden = true;
  } catch (error) {
    console.info("The index of words is not there; Sphinx's own results follow.", String(error));
  }
});
