// The picture of the home page: how many equilibria has z = relu(Wz + q), W = [[0, b], [c, 0]]?
// Every pixel is a q. For two units all four patterns of active units are solved in closed form.
(() => {
  const WINDOW = 3;
  const COLOURS = ["#3d3d3d", "#56b4e9", "#e69f00", "#cc79a7"];
  const NAMES = ["none", "one", "two", "three"];

  function count(b, c, p, q) {
    let found = 0;
    if (p <= 0 && q <= 0) found += 1; // both off: z = 0
    if (p > 0 && c * p + q <= 0) found += 1; // the first on
    if (q > 0 && b * q + p <= 0) found += 1; // the second on
    const det = 1 - b * c;
    if (det !== 0 && (p + b * q) / det > 0 && (q + c * p) / det > 0) found += 1;
    return found;
  }
  window.deqCount = count; // a test compares it with brute force

  // Whole per cents that add up to a hundred: the largest remainders are rounded up.
  function percent(tally) {
    const all = tally.reduce((sum, n) => sum + n, 0);
    const exact = tally.map((n) => (100 * n) / all);
    const shares = exact.map(Math.floor);
    const order = exact.map((x, k) => [x - Math.floor(x), k]).sort((p, q) => q[0] - p[0]);
    const missing = 100 - shares.reduce((sum, n) => sum + n, 0);
    order.slice(0, missing).forEach(([, k]) => (shares[k] += 1));
    return shares;
  }

  function draw(figure) {
    const canvas = figure.querySelector("canvas");
    const [b, c] = [...figure.querySelectorAll("input")].map((input) => Number(input.value));
    const size = canvas.width;
    const context = canvas.getContext("2d");
    const tally = [0, 0, 0, 0];
    for (let i = 0; i < size; i += 1) {
      for (let j = 0; j < size; j += 1) {
        const n = count(b, c, ((i + 0.5) / size - 0.5) * 2 * WINDOW, (0.5 - (j + 0.5) / size) * 2 * WINDOW);
        tally[n] += 1;
        context.fillStyle = COLOURS[n];
        context.fillRect(i, j, 1, 1);
      }
    }
    const shares = percent(tally);
    const parts = shares.map((share, k) => [share, NAMES[k], k]).filter(([share]) => share);
    const written = (x) => x.toFixed(1).replace("-", "−");
    figure.querySelectorAll("output")[0].textContent = written(b);
    figure.querySelectorAll("output")[1].textContent = written(c);
    const told = figure.querySelector(".deq-home-told");
    told.replaceChildren();
    parts.forEach(([share, name, k]) => {
      const item = document.createElement("span");
      const sample = document.createElement("i");
      sample.style.background = COLOURS[k];
      item.append(sample, `${name} ${share} %`);
      told.append(item);
    });
    const norm = Math.max(Math.abs(b), Math.abs(c));
    figure.querySelector(".deq-home-norm").innerHTML = `‖<i>W</i>‖ = ${norm.toFixed(1)}`;
    const says = parts.map(([share, name]) => `${name} for ${share} percent`).join(", ");
    canvas.setAttribute("aria-label", `Plane of q. Equilibria: ${says} of it.`);
  }

  document.addEventListener("DOMContentLoaded", () => {
    const place = document.querySelector(".deq-home-picture");
    if (!place) return;
    const figure = document.createElement("figure");
    figure.className = "deq-home";
    figure.innerHTML =
      '<canvas width="180" height="180" role="img"></canvas><div>' +
      '<p class="deq-home-buttons"></p>' +
      '<label>second unit acts on the first, <i>b</i> = <output></output><input type="range" min="-3" max="3" step="0.1" value="-2"></label>' +
      '<label>first unit acts on the second, <i>c</i> = <output></output><input type="range" min="-3" max="3" step="0.1" value="-2"></label>' +
      '<p class="deq-home-norm"></p><p class="deq-home-told" role="status"></p></div>';
    const inputs = figure.querySelectorAll("input");
    [["a rotation", 3, -3], ["inhibition", -2, -2], ["excitation", 2, 2], ["a contraction", 0.5, 0.5]].forEach(([name, b, c]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", () => {
        inputs[0].value = b;
        inputs[1].value = c;
        draw(figure);
      });
      figure.querySelector(".deq-home-buttons").append(button);
    });
    inputs.forEach((input) => input.addEventListener("input", () => draw(figure)));
    place.replaceWith(figure);
    draw(figure);
  });
})();
