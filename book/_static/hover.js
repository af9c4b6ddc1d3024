// A link to a statement, an equation or a term shows what stands there when it is pointed at.
document.addEventListener("DOMContentLoaded", () => {
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href);
  const article = document.querySelector("article");
  if (!article || !window.matchMedia("(hover: hover)").matches) return;
  let data = null;
  let box = null;
  let timer = 0;
  let number = 0;

  const load = () =>
    (data ??= new Promise((done) => {
      const script = document.createElement("script");
      script.src = new URL("_static/previews.js", root).href;
      script.onload = () => done(window.deqPreviews);
      script.onerror = () => done({});
      document.head.append(script);
    }));

  function close() {
    clearTimeout(timer);
    box?.link.removeAttribute("aria-describedby");
    box?.remove();
    box = null;
  }
  async function open(link) {
    const target = new URL(link.getAttribute("href"), location.href);
    if (!target.href.startsWith(root.href) || !target.hash) return;
    const found = (await load())[decodeURIComponent(target.href.slice(root.href.length))];
    if (!found || !(link.matches(":hover") || link === document.activeElement)) return;
    close();
    box = document.createElement("div");
    box.link = link;
    box.className = "deq-hover";
    box.id = `deq-hover-${(number += 1)}`;
    box.setAttribute("role", "tooltip");
    box.innerHTML = found; // made by the build, from a page of this book
    document.body.append(box);
    link.setAttribute("aria-describedby", box.id);
    const place = link.getBoundingClientRect();
    const width = Math.min(560, document.documentElement.clientWidth - 16);
    box.style.width = `${width}px`;
    box.style.left = `${Math.max(8, Math.min(place.left, document.documentElement.clientWidth - width - 8)) + scrollX}px`;
    box.style.top = `${place.bottom + 6 + scrollY}px`;
    box.addEventListener("mouseleave", close);
    await window.MathJax?.typesetPromise?.([box]);
    if (box && place.bottom + box.offsetHeight + 12 > innerHeight && place.top > box.offsetHeight + 12) {
      box.style.top = `${place.top - box.offsetHeight - 6 + scrollY}px`;
    }
  }
  const linkOf = (event) => event.target.closest?.("a.reference.internal[href*='#']");
  article.addEventListener("mouseover", (event) => {
    const link = linkOf(event);
    if (!link || box?.link === link) return;
    clearTimeout(timer);
    timer = setTimeout(() => open(link), 250);
  });
  article.addEventListener("mouseout", (event) => {
    if (!linkOf(event)) return;
    clearTimeout(timer);
    timer = setTimeout(() => { if (box && !box.matches(":hover") && !box.link.matches(":hover")) close(); }, 200);
  });
  article.addEventListener("focusin", (event) => { const link = linkOf(event); if (link) open(link); });
  article.addEventListener("focusout", close);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
});
