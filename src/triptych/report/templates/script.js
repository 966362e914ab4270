for (const viewer of document.querySelectorAll(".viewer")) {
  const buttons = [...viewer.querySelectorAll("button")];
  const range = viewer.querySelector("input");
  const large = viewer.querySelector(".large");
  const caption = viewer.querySelector("figcaption");
  if (!range || !large || buttons.length < 2) continue;
  viewer.classList.add("live");
  const show = (k) => {
    large.src = buttons[k].querySelector("img").src;
    large.alt = "grid of samples " + buttons[k].title;
    caption.textContent = buttons[k].title;
    range.value = k;
    range.setAttribute("aria-valuetext", buttons[k].title);
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === k));
  };
  range.addEventListener("input", () => show(Number(range.value)));
  buttons.forEach((button, k) => button.addEventListener("click", () => show(k)));
  range.setAttribute("aria-valuetext", caption.textContent);
}

for (const svg of document.querySelectorAll("svg.by-images, svg.by-time")) {
  const make = (name, style) => { const made = document.createElementNS(svg.namespaceURI, name); made.setAttribute("class", style); return made; };
  const told = [...svg.parentElement.querySelectorAll("svg.by-images g.line")];
  const places = (g) => g.querySelector(".curve").getAttribute("d").slice(1).split("L").map((place) => place.split(" ").map(Number));
  const points = [...svg.querySelectorAll("g.line")].flatMap((g, k) => {
    const [images, values] = [told[k].dataset.images.split(" "), told[k].dataset.values.split(" ")];
    return places(g).map(([x, y], i) => ({ x, y, style: g.getAttribute("class"), text: `${Number(images[i]).toLocaleString("en")} images: ${values[i]}` }));
  });
  const spot = make("g", ""), dot = make("circle", "dot"), text = make("text", "spot");
  dot.setAttribute("r", 4);
  spot.append(dot, text);
  const show = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const near = points.reduce((a, b) => (Math.hypot(b.x - at.x, b.y - at.y) < Math.hypot(a.x - at.x, a.y - at.y) ? b : a));
    const right = near.x > svg.viewBox.baseVal.width / 2;
    spot.setAttribute("class", near.style);
    dot.setAttribute("cx", near.x);
    dot.setAttribute("cy", near.y);
    text.setAttribute("x", near.x + (right ? -9 : 9));
    text.setAttribute("y", Math.max(near.y - 8, 22));
    text.setAttribute("text-anchor", right ? "end" : "start");
    text.textContent = near.text;
    svg.append(spot);
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => spot.remove());
}
const folded = [...document.querySelectorAll("details:not([open], .values)")];
addEventListener("beforeprint", () => folded.forEach((each) => (each.open = true)));
addEventListener("afterprint", () => folded.forEach((each) => (each.open = false)));
