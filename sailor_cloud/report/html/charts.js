"use strict";
// Draws every .echart of the page with the bundled ECharts, in the page's own colours, and again where those change.
const sailorCharts = (() => {
  const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`).replace(/\n/g, "<br>");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const coloured = (option) =>
    JSON.parse(JSON.stringify(option).replace(/var\((--[\w-]+)\)/g, (_, name) => colour(name)));
  const axis = (given) => ({
    ...given,
    axisLine: { lineStyle: { color: colour("--muted") } },
    axisLabel: {
      color: colour("--muted"), hideOverlap: true, ...given.axisLabel,
      ...(given.type === "value" ? { formatter: (value) => String(+value.toPrecision(4)) } : {}),
    },
    splitLine: { lineStyle: { color: colour("--line") } },
  });
  const prepared = (option, width) => {
    const made = coloured(option);
    const narrow = width < 520;
    made.textStyle = { color: colour("--ink"), fontFamily: "system-ui, DejaVu Sans, sans-serif" };
    made.animation = false;
    made.aria = { enabled: false };
    made.legend = { ...made.legend, textStyle: { color: colour("--ink") } };
    made.tooltip = {
      ...made.tooltip, backgroundColor: colour("--ink"), borderWidth: 0,
      textStyle: { color: colour("--paper"), fontSize: 12 },
      formatter: (at) => escaped([].concat(at).map((each) => (each.data && each.data.tip) || `${each.name}: ${each.value}`).join("\n")),
    };
    // Without labels beside bars and points their room is free.
    if (narrow && made.grid) made.grid.right = 24;
    for (const name of ["xAxis", "yAxis"]) if (made[name]) made[name] = axis(made[name]);
    for (const series of made.series) {
      series.labelLayout = { hideOverlap: true, ...series.labelLayout };
      if (series.label) series.label = { color: colour("--ink"), ...series.label, show: series.label.show && !narrow };
    }
    return made;
  };
  const draw = (box, option) => {
    box.style.display = "block";
    const chart = echarts.getInstanceByDom(box) || echarts.init(box, null, { renderer: "svg" });
    // What is zoomed stays so while a run goes on.
    chart.setOption(prepared(option, box.clientWidth), { replaceMerge: ["series"] });
    return chart;
  };
  const clear = (box) => {
    const chart = echarts.getInstanceByDom(box);
    if (chart) chart.clear();
  };
  const all = () => {
    for (const box of document.querySelectorAll(".echart[data-option]")) {
      draw(box, JSON.parse(box.dataset.option)).resize();
    }
  };
  all();
  let width = innerWidth;
  addEventListener("resize", () => { if (width !== innerWidth) { width = innerWidth; all(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  addEventListener("beforeprint", all);
  return { draw, clear };
})();
