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
