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
  const axis = (given, narrow, bars) => ({
    ...given,
    // Room around points ends at zero: nothing takes less time or money.
    ...(given.scale && given.boundaryGap ? { min: floor, boundaryGap: [0, given.boundaryGap[1]] } : {}),
    axisLine: { ...given.axisLine, lineStyle: { color: colour("--muted") } },
    axisLabel: {
      color: colour("--muted"), hideOverlap: true, ...given.axisLabel,
      ...(narrow && given.type === "category" ? { width: 130, overflow: "break", fontSize: 10, lineHeight: 11 } : {}),
      ...(given.type === "value" ? { formatter: (value) => String(+value.toPrecision(4)) } : {}),
    },
    // Beside the names and amounts of bars, there is room for few ticks.
    ...(narrow && given.type === "value" && bars ? { splitNumber: 3 } : {}),
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
    const bars = made.series.some((series) => series.type === "bar");
    for (const name of ["xAxis", "yAxis"]) if (made[name]) made[name] = axis(made[name], narrow, bars);
    for (const series of made.series) {
      series.labelLayout = { hideOverlap: true, ...series.labelLayout };
      if (series.label) series.label = { color: colour("--ink"), lineHeight: 15, textBorderColor: colour("--paper"), textBorderWidth: 3, ...series.label, show: series.label.show && (!narrow || series.label.always || series.coordinateSystem === "geo") };
      // Amounts beside bars take two lines.
      if (narrow && series.label && series.type === "bar") {
        made.grid.right = 100;
        Object.assign(series.label, { fontSize: 10, lineHeight: 11, formatter: ({ name }) => name.replace(", ", "\n") });
      }
    }
    return made;
  };
  const FONT = 12, AROUND = 4;
  const pen = document.createElement("canvas").getContext("2d");
  const size = (label, text) => {
    pen.font = `${label.fontWeight || "normal"} ${FONT}px system-ui, "DejaVu Sans", sans-serif`;
    return { width: pen.measureText(text).width, height: FONT + 3 };
  };
  const overlap = (a, b) =>
    Math.max(0, Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x)) *
    Math.max(0, Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y));
  const between = (from, to) => ({
    x: Math.min(from[0], to[0]) - 1, y: Math.min(from[1], to[1]) - 1,
    width: Math.abs(from[0] - to[0]) + 2, height: Math.abs(from[1] - to[1]) + 2,
  });
  // Places the name of each point where it covers no point, no line and no other name. Without such a place, a name that
  // must be shown takes the least bad one, and others are left to their tips.
  const named = (chart, option) => {
    const grid = chart.getModel().getComponent("grid").coordinateSystem.getRect();
    const edge = { left: grid.x + 2, right: chart.getWidth() - 2, top: grid.y - FONT, bottom: grid.y + grid.height - 2 };
    const at = (value) => chart.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, value);
    const taken = [], points = [];
    for (const series of option.series) {
      const spots = series.data.map((each) => at(each.value));
      spots.forEach(([x, y], place) => {
        const radius = (series.symbolSize || 7) / 2, { name } = series.data[place];
        taken.push({ x: x - radius, y: y - radius, width: 2 * radius, height: 2 * radius });
        if (name && series.label && series.label.show) points.push({ series, place, x, y, radius, name });
      });
      // A step of the frontier is level until the next point, then falls to it.
      for (let step = 1; series.type === "line" && step < spots.length; step++) {
        const [from, to] = [spots[step - 1], spots[step]], corner = [to[0], from[1]];
        taken.push(between(from, corner), between(corner, to));
      }
      for (const line of (series.markLine || { data: [] }).data) {
        if (line.yAxis === undefined) {
          const [x] = at([line.xAxis, 0]);
          taken.push(between([x, grid.y], [x, grid.y + grid.height]));
          continue;
        }
        const [, y] = at([0, line.yAxis]), { width, height } = size({}, line.name);
        const right = grid.x + grid.width;
        taken.push(between([grid.x, y], [right, y]), { x: right - width - 8, y: y - height - 4, width: width + 8, height: height + 4 });
      }
    }
    const first = ({ series }) => (series.name === "chosen" ? 0 : series.label.always ? 1 : 2);
    for (const { series, place, x, y, radius, name } of points.sort((a, b) => first(a) - first(b))) {
      const { width, height } = size(series.label, name), found = [];
      for (const away of [AROUND, 3 * AROUND, 6 * AROUND]) {
        const far = radius + away, aslant = 0.7 * far;
        const [left, above] = [x - width, y - height];
        found.push(
          [x + far, y - height / 2], [x + aslant, above - aslant + 3], [x - width / 2, above - far + 2], [x + aslant, y + aslant - 3],
          [left - far, y - height / 2], [left - aslant, y + aslant - 3], [left - aslant, above - aslant + 3], [x - width / 2, y + far - 2],
        );
      }
      const judged = found.map(([at, over], order) => {
        const shape = { x: at, y: over, width, height };
        const outside = Math.max(0, edge.left - at) + Math.max(0, at + width - edge.right) +
          Math.max(0, edge.top - over) + Math.max(0, over + height - edge.bottom);
        return { shape, order, covered: 100 * outside + taken.reduce((sum, each) => sum + overlap(shape, each), 0) };
      });
      const best = judged.reduce((one, other) => (other.covered < one.covered ? other : one));
      const shown = series.label.always || best.covered === 0;
      if (shown) taken.push({ ...best.shape, x: best.shape.x - AROUND, width: width + 2 * AROUND });
      series.data[place].label = shown
        ? { position: [best.shape.x - x + radius, best.shape.y - y + radius], align: "left", verticalAlign: "top" }
        : { show: false };
      series.labelLayout = { hideOverlap: false };
    }
    return option;
  };
  const draw = (box, option) => {
    box.style.display = "block";
    if (box.style.height) {
      box.dataset.height ||= parseFloat(box.style.height);
      box.style.height = `${+box.dataset.height + room(option, box.clientWidth)}px`;
    }
    const drawn = echarts.getInstanceByDom(box);
    if (drawn) drawn.resize();
    const chart = drawn || echarts.init(box, null, { renderer: box.dataset.renderer || "svg" });
    // What is zoomed stays so while a run goes on.
    const made = prepared(option, box.clientWidth);
    chart.setOption(made, { replaceMerge: ["series"] });
    const scattered = made.xAxis && made.series.some((each) => each.type === "scatter" && each.label && each.symbol !== "rect");
    if (scattered) chart.setOption({ series: named(chart, made).series });
    return chart;
  };
  const clear = (box) => {
    const chart = echarts.getInstanceByDom(box);
    if (chart) chart.dispose();
  };
  const all = () => {
    for (const box of document.querySelectorAll(".echart[data-option]")) {
      draw(box, JSON.parse(box.dataset.option));
    }
  };
  all();
  let width = innerWidth;
  addEventListener("resize", () => { if (width !== innerWidth) { width = innerWidth; all(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  addEventListener("beforeprint", all);
  return { draw, clear };
})();
