// A figure can be enlarged, and a slider stands where its reader has left it.
(() => {
  const EXPAND =
    '<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true"><path fill="none" ' +
    'stroke="currentColor" stroke-width="2" d="M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4"/></svg>';

  // --- enlarging: the picture itself, with its slider, moves into a dialog and back --------------

  let dialog = null;
  const makeDialog = () => {
    dialog = document.createElement("dialog");
    dialog.className = "deq-large";
    dialog.innerHTML =
      '<button type="button" class="deq-large-close">Close</button>' +
      '<div class="deq-large-room" tabindex="0" role="group" aria-label="Figure, scrolls"></div>';
    dialog.querySelector("button").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    document.body.append(dialog);
  };

  const enlarge = (picture, button, name) => {
    if (!dialog) makeDialog();
    const room = dialog.querySelector(".deq-large-room");
    const gap = document.createElement("div");
    gap.style.height = `${picture.getBoundingClientRect().height}px`;
    const image = picture.matches("img") ? picture : picture.querySelector("img");
    const ratio = image.naturalWidth / image.naturalHeight || 1.5;
    picture.replaceWith(gap);
    room.append(picture);
    dialog.setAttribute("aria-label", `${name}, enlarged`);
    dialog.style.setProperty("--deq-ratio", ratio);
    dialog.addEventListener(
      "close",
      () => {
        gap.replaceWith(picture);
        button.focus();
      },
      { once: true },
    );
    dialog.showModal();
  };

  const offer = (figure) => {
    const picture = figure.querySelector(":scope > img, :scope > .text_html > .deq-explore");
    if (!picture) return;
    const number = figure.querySelector(".caption-number")?.textContent.trim() ?? "figure";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "deq-enlarge";
    button.innerHTML = EXPAND;
    button.setAttribute("aria-label", `Enlarge ${number}`);
    button.title = "Enlarge";
    button.addEventListener("click", () => enlarge(picture, button, number));
    figure.classList.add("deq-has-enlarge");
    figure.append(button);
  };

  // --- resuming: where a slider stands is kept for the time of the visit -------------------------

  const kept = (key, value) => {
    try {
      if (value === undefined) return sessionStorage.getItem(key);
      sessionStorage.setItem(key, value);
    } catch {
      // Some browsers keep nothing for files.
    }
    return null;
  };

  const resume = (slider) => {
    const before = kept(slider.id);
    if (before !== null && before !== slider.value && Number(before) <= Number(slider.max)) {
      slider.value = before;
      slider.dispatchEvent(new Event("input"));
    }
    slider.addEventListener("input", () => kept(slider.id, slider.value));
  };

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("article figure:not(.deq-explore, .deq-home)").forEach(offer);
    document.querySelectorAll(".deq-explore input[type=range]").forEach(resume);
  });
})();
