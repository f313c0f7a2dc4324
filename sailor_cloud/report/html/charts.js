"use strict";
// Draws every .echart of the page with the bundled ECharts, in the page's own colours, and again where those change.
const sailorCharts = (() => {
  const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`).replace(/\n/g, "<br>");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const coloured = (option) =>
    JSON.parse(JSON.stringify(option).replace(/var\((--[\w-]+)\)/g, (_, name) => colour(name)));
  const floor = ({ min, max }) => {
    const step = 10 ** Math.floor(Math.log10(max - min || max || 1));
    return Math.max(0, Math.floor((min - 0.08 * (max - min)) / step) * step);
  };
  const axis = (given, narrow) => ({
    ...given,
    // Room around points ends at zero: nothing takes less time or money.
    ...(given.scale && given.boundaryGap ? { min: floor, boundaryGap: [0, given.boundaryGap[1]] } : {}),
    axisLine: { ...given.axisLine, lineStyle: { color: colour("--muted") } },
    axisLabel: {
      color: colour("--muted"), hideOverlap: true, ...given.axisLabel,
      ...(narrow && given.type === "category" ? { width: 130, overflow: "break", fontSize: 10, lineHeight: 11 } : {}),
      ...(given.type === "value" ? { formatter: (value) => String(+value.toPrecision(4)) } : {}),
    },
    splitLine: { ...given.splitLine, lineStyle: { color: colour("--line") } },
  });
  // A row of (row, start, end, what), drawn as a bar from start to end; zoomed charts cut it at their edges.
  const bar = (params, api) => {
    const row = api.value(0), from = api.coord([api.value(1), row]), to = api.coord([api.value(2), row]);
    const height = 0.76 * api.size([0, 1])[1];
    const whole = { x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 0.4), height };
    const shape = echarts.graphic.clipRectByRect(whole, params.coordSys);
    return shape && { type: "rect", shape, style: { fill: api.visual("color") } };
  };
  const brief = (seconds) => `${+seconds.toPrecision(4)} s`;
  const spans = (series) => ({
    ...series, type: "custom", renderItem: bar, encode: { x: [1, 2], y: 0 },
    data: series.data.map(([row, start, end, what]) => ({ value: [row, start, end], tip: series.name === "bubble" ? what
      : `${what}\n${brief(end - start)}, from ${brief(start)} to ${brief(end)}` })),
  });
  const land = document.getElementById("land");
  if (land) {
    const pairs = (ring) => ring.flatMap((x, at) => (at % 2 ? [] : [[x, ring[at + 1]]]));
    const geometry = { type: "MultiPolygon", coordinates: JSON.parse(land.textContent).map((ring) => [pairs(ring)]) };
    echarts.registerMap("land", { type: "FeatureCollection", features: [{ type: "Feature", properties: { name: "land" }, geometry }] });
  }
  // Height that a legend of several rows takes below its chart; 0 where it fits in one row above it.
  const room = ({ legend, series }, width) => {
    if (!legend || legend.show === false || legend.type !== "plain") return 0;
    let rows = 1, used = 0;
    for (const { name } of series.filter((each) => each.name)) {
      const taken = 36 + 7.5 * name.length;
      if (used && used + taken > width) [rows, used] = [rows + 1, 0];
      used += taken;
    }
    return rows > 1 ? 8 + 22 * rows : 0;
  };
  const prepared = (option, width) => {
    const made = coloured(option);
    const narrow = width < 520;
    made.series = made.series.map((series) => (series.type === "spans" ? spans(series) : series));
    made.textStyle = { color: colour("--ink"), fontFamily: "system-ui, DejaVu Sans, sans-serif" };
    made.animation = false;
    made.aria = { enabled: false };
    made.legend = { ...made.legend, textStyle: { color: colour("--ink") }, pageTextStyle: { color: colour("--ink") } };
    made.tooltip = {
      ...made.tooltip, backgroundColor: colour("--ink"), borderWidth: 0,
      textStyle: { color: colour("--paper"), fontSize: 12 },
      formatter: (at) => escaped([].concat(at).map((each) => (each.data && each.data.tip) || `${each.name}: ${each.value}`).join("\n")),
    };
    // Without labels beside bars and points their room is free.
    const kept = made.series.some((series) => series.label && series.label.always);
    if (narrow && made.grid && !kept) made.grid.right = 24;
    const below = room(option, width);
    if (below && made.grid) {
      made.legend = { ...made.legend, top: "auto", bottom: 0, itemGap: 8, itemWidth: 18 };
      made.grid = { ...made.grid, top: Math.min(made.grid.top, 36), bottom: made.grid.bottom + below };
    }
    for (const name of ["xAxis", "yAxis"]) if (made[name]) made[name] = axis(made[name], narrow);
    for (const series of made.series) {
      series.labelLayout = { hideOverlap: true, ...series.labelLayout };
      if (series.label) series.label = { color: colour("--ink"), lineHeight: 15, textBorderColor: colour("--paper"), textBorderWidth: 3, ...series.label, show: series.label.show && (!narrow || series.label.always || series.coordinateSystem === "geo") };
      // Amounts beside bars take two lines.
      if (narrow && series.label && series.type === "bar") {
        made.grid.right = 100;
        Object.assign(series.label, { fontSize: 10, lineHeight: 11, formatter: ({ name }) => name.replace(", ", "\n") });
      }
      // Beside a point at the right edge there is no room, so only the chosen plan's label is there, inwards.
      if (narrow && series.label && series.label.always && series.type === "scatter" && series.symbol !== "rect") {
        const ends = made.series.flatMap((each) => each.data.map((at) => at.value[0]));
        const inwards = series.data[0].value[0] > Math.max(...ends) / 2 ? "left" : "right";
        series.label.position = series.name === "chosen" ? inwards : "top";
      }
    }
    return made;
  };
  const draw = (box, option) => {
    box.style.display = "block";
    if (box.style.height) {
      box.dataset.height ||= parseFloat(box.style.height);
      box.style.height = `${+box.dataset.height + room(option, box.clientWidth)}px`;
    }
    const chart = echarts.getInstanceByDom(box) || echarts.init(box, null, { renderer: box.dataset.renderer || "svg" });
    // What is zoomed stays so while a run goes on.
    chart.setOption(prepared(option, box.clientWidth), { replaceMerge: ["series"] });
    return chart;
  };
  const clear = (box) => {
    const chart = echarts.getInstanceByDom(box);
    if (chart) chart.dispose();
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
