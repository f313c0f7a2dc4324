"use strict";
(() => {
  const tip = document.getElementById("tip");
  const place = (x, y) => {
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
    tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
  };
  const show = (content, x, y) => {
    tip.textContent = content;
    tip.style.display = "block";
    place(x, y);
  };
  const hide = () => { tip.style.display = "none"; };
  const MARKS = 1e6;
  const lists = new WeakMap();
  const listOf = (row) => {
    if (!lists.has(row)) lists.set(row, row.dataset.operations.split(";").map((entry) => entry.split(",")));
    return lists.get(row);
  };
  const brief = (seconds) => `${Number(seconds.toPrecision(4))} s`;
  // What a stage does at the pointer; a row of the schedule holds thousands of operations and three or four shapes.
  const operation = (row, x) => {
    const { left, width } = row.querySelector("[data-tip]").getBoundingClientRect();
    const slack = MARKS / width;
    const at = (x - left) * slack;
    const hit = listOf(row).findLast(([, , start, length]) => at >= start - slack / 2 && at <= +start + +length + slack / 2);
    if (!hit || at < 0) return row.querySelector("[data-tip]").dataset.tip;
    const [kind, microbatch, start, length] = hit;
    const mark = row.dataset.seconds / MARKS;
    const which = microbatch === "" ? "" : ` of microbatch ${microbatch}`;
    return `${row.dataset.kinds.split(",")[kind]}${which}\n${brief(length * mark)}, from ${brief(start * mark)} to ${brief((+start + +length) * mark)}`;
  };
  const told = (mark, x) => {
    const row = mark.closest("[data-operations]");
    return row && x !== undefined ? operation(row, x) : mark.dataset.tip;
  };
  const found = (event) => event.target instanceof Element ? event.target.closest("[data-tip],[data-operations]") : null;
  document.addEventListener("pointermove", (event) => {
    const mark = found(event);
    if (mark) show(told(mark, event.clientX), event.clientX, event.clientY); else hide();
  });
  document.addEventListener("focusin", (event) => {
    const mark = found(event);
    if (!mark) return;
    const box = mark.getBoundingClientRect();
    show(told(mark), box.left + box.width / 2, box.bottom);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
