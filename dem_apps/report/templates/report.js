"use strict";

// the choice that shows every view of an image
const ALL = "all";

// A picture with the same content as an earlier one is held once in the page.
for (const image of document.querySelectorAll("img[data-same]")) {
  image.src = document.getElementById(image.dataset.same).src;
}
document.documentElement.classList.add("scripted");

for (const part of document.querySelectorAll(".part")) {
  const gallery = part.querySelector(".gallery");
  if (gallery) startGallery(gallery);
  const compare = part.querySelector(".compare");
  if (compare) startCompare(compare, gallery);
}

for (const chart of document.querySelectorAll(".chart")) startChart(chart);

function startChart(chart) {
  const svg = chart.querySelector("svg");
  const readout = chart.querySelector(".readout");
  const lines = [...svg.querySelectorAll("polyline[data-values]")].map((line) => ({
    name: line.dataset.name,
    places: line.getAttribute("points").split(" ").map((point) => Number(point.split(",")[0])),
    values: line.dataset.values.split(";").map((pair) => pair.split("|")),
  }));
  if (!lines.length) return;
  const guide = svg.querySelector(".pointer");

  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    const nearest = lines.map((line) => {
      const far = line.places.map((place) => Math.abs(place - at));
      const index = far.indexOf(Math.min(...far));
      return { far: far[index], place: line.places[index], name: line.name, value: line.values[index] };
    });
    const first = nearest.reduce((one, other) => (other.far < one.far ? other : one));
    guide.setAttribute("x1", first.place);
    guide.setAttribute("x2", first.place);
    guide.setAttribute("visibility", "visible");
    // a line that has no point there says nothing
    const shown = nearest.filter((one) => one.value[0] === first.value[0]);
    readout.textContent = `${first.value[0]}: ` + shown.map((one) => `${one.name} ${one.value[1]}`).join(", ");
  });
  svg.addEventListener("pointerleave", () => {
    guide.setAttribute("visibility", "hidden");
    readout.textContent = "\u00a0";
  });
}

function startGallery(gallery) {
  const images = [...gallery.querySelectorAll(".image")];
  const radios = [...gallery.querySelectorAll("input[type=radio]")];
  const output = gallery.querySelector("output");
  let current = 0;

  function show() {
    const wanted = radios.find((radio) => radio.checked).value;
    images.forEach((image, position) => {
      image.hidden = position !== current;
      image.classList.toggle("all", wanted === ALL);
      const views = [...image.querySelectorAll(".view")];
      // an image without the wanted view shows its first
      const shown = views.find((view) => view.dataset.view === wanted) || views[0];
      for (const view of views) view.hidden = wanted !== ALL && view !== shown;
    });
    output.textContent = `${current + 1} of ${images.length}: ${images[current].dataset.name}`;
  }

  function step(by) {
    current = (current + by + images.length) % images.length;
    show();
  }

  for (const button of gallery.querySelectorAll("button")) {
    button.addEventListener("click", () => step(Number(button.dataset.step)));
  }
  for (const radio of radios) radio.addEventListener("change", show);
  gallery.addEventListener("keydown", (event) => {
    // in the views the arrows belong to the radio buttons
    if (event.target.type === "radio") return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      step(event.key === "ArrowLeft" ? -1 : 1);
    }
  });
  gallery.addEventListener("click", (event) => {
    if (event.target.tagName !== "IMG") return;
    const checked = radios.findIndex((radio) => radio.checked);
    const clicked = radios.findIndex((radio) => radio.value === event.target.dataset.view);
    radios[radios[checked].value === ALL ? clicked : (checked + 1) % radios.length].checked = true;
    show();
  });
  show();
}

function startCompare(compare, gallery) {
  const chosen = (side) => compare.querySelector(`select[data-side=${side}]`).value;
  const under = compare.querySelector(".under");
  const over = compare.querySelector(".over");
  const edge = compare.querySelector(".edge");
  const range = compare.querySelector("input[type=range]");
  const note = compare.querySelector(".note");

  function source(side) {
    const [run, image, view] = [chosen(side), chosen("image"), chosen("view")];
    return [...gallery.querySelectorAll("img[data-run]")].find(
      (one) => one.dataset.run === run && one.dataset.image === image && one.dataset.view === view,
    );
  }

  function move() {
    over.style.clipPath = `inset(0 ${100 - range.value}% 0 0)`;
    edge.style.left = `${range.value}%`;
  }

  function choose() {
    const sides = { left: over, right: under };
    const missing = [];
    for (const [side, shown] of Object.entries(sides)) {
      const found = source(side);
      shown.hidden = !found;
      shown.classList.toggle("crisp", Boolean(found) && found.classList.contains("crisp"));
      if (found) [shown.src, shown.alt] = [found.src, `${side}: ${found.alt}`];
      else missing.push(side);
    }
    note.textContent = missing.length ? `There is no such picture on the ${missing.join(" and the ")}.` : "";
    move();
  }

  for (const select of compare.querySelectorAll("select")) select.addEventListener("change", choose);
  range.addEventListener("input", move);
  choose();
}
