// Lights up, on the map of the theorems, all that a chosen statement rests on.
document.addEventListener("DOMContentLoaded", () => {
  const map = document.querySelector(".deq-map");
  if (!map) return;
  const boxes = new Map([...map.querySelectorAll(".deq-map-box")].map((b) => [b.id.slice(4), b]));
  const lines = [...map.querySelectorAll("path")];
  const choice = document.getElementById("deq-map-choice");
  const path = document.querySelector(".deq-map-path");
  choice.parentElement.hidden = false;

  function under(label) {
    const seen = new Set([label]);
    const todo = [label];
    while (todo.length) {
      for (const need of boxes.get(todo.pop()).dataset.needs.split(" ").filter(Boolean)) {
        if (!seen.has(need)) { seen.add(need); todo.push(need); }
      }
    }
    return seen;
  }
  function light(label) {
    const lit = label ? under(label) : new Set();
    map.classList.toggle("deq-map-lit", Boolean(label));
    boxes.forEach((box, name) => box.classList.toggle("deq-lit", lit.has(name)));
    lines.forEach((line) => line.classList.toggle("deq-lit", lit.has(line.dataset.from)));
  }
  function tell(label) {
    path.replaceChildren();
    if (!label) return;
    const lit = [...under(label)].filter((name) => name !== label);
    const text = document.createElement("p");
    text.append(lit.length ? `It rests on ${lit.length} statement${lit.length > 1 ? "s" : ""}: ` : "It refers to no other statement.");
    [...boxes.keys()].filter((name) => lit.includes(name)).forEach((name, k) => {
      const link = document.createElement("a");
      link.href = boxes.get(name).getAttribute("href");
      link.textContent = boxes.get(name).querySelector("text").textContent;
      link.title = boxes.get(name).querySelector("title").textContent;
      text.append(k ? ", " : "", link);
    });
    const go = document.createElement("a");
    go.href = boxes.get(label).getAttribute("href");
    go.textContent = "Go to it.";
    text.append(" ", go);
    path.append(text);
  }
  const chosen = () => (boxes.has(choice.value) ? choice.value : "");
  choice.addEventListener("change", () => { light(chosen()); tell(chosen()); });
  boxes.forEach((box, name) => {
    for (const event of ["mouseenter", "focus"]) box.addEventListener(event, () => light(name));
    for (const event of ["mouseleave", "blur"]) box.addEventListener(event, () => light(chosen()));
  });
  const asked = decodeURIComponent(location.hash.slice(1)).replace(/^map-/, "");
  if (boxes.has(asked)) { choice.value = asked; light(asked); tell(asked); }
});
