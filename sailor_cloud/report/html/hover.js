"use strict";
(() => {
  const tip = document.getElementById("tip");
  const place = (x, y) => {
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
    tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
  };
  const show = (mark, x, y) => {
    tip.textContent = mark.dataset.tip;
    tip.style.display = "block";
    place(x, y);
  };
  const hide = () => { tip.style.display = "none"; };
  const found = (event) => event.target instanceof Element ? event.target.closest("[data-tip]") : null;
  document.addEventListener("pointermove", (event) => {
    const mark = found(event);
    if (mark) show(mark, event.clientX, event.clientY); else hide();
  });
  document.addEventListener("focusin", (event) => {
    const mark = found(event);
    if (!mark) return;
    const box = mark.getBoundingClientRect();
    show(mark, box.left + box.width / 2, box.bottom);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
