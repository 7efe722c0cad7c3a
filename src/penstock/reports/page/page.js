"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const plots = []; // every chart: {chart, holder, readout, make, u}

// Elements

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function section(id, title, short, intro, ...children) {
  const heading = element("h2", { id: id + "-title" }, title);
  const made = element("section", { id, "aria-labelledby": id + "-title" }, heading);
  if (intro) made.append(element("p", { class: "muted" }, intro));
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  document.getElementById("main").append(made);
  let list = document.querySelector("#contents ul");
  if (!list) document.getElementById("contents").append((list = element("ul", {})));
  list.append(element("li", {}, element("a", { href: "#" + id }, short)));
  return made;
}

function scroll(label, child) {
  return element("div", { class: "scroll", role: "region", "aria-label": label + ", table", tabindex: "0" }, child);
}

/* A table. A cell is a text, a number, null, or an element. `text` has the numbers of the columns with texts. */
function table(label, columns, rows, { text = [0], wide = false, name = "" } = {}) {
  const head = columns.map((c, i) => element("th", { scope: "col", class: text.includes(i) ? "text" : null }, c));
  const body = rows.map((row) =>
    element(
      "tr",
      {},
      row.map((cell, i) => {
        const shown = cell === null || cell === undefined ? "–" : typeof cell === "number" ? format(cell) : cell;
        if (i === 0) return element("th", { scope: "row", class: "text" }, shown);
        return element("td", { class: text.includes(i) ? "text" : null }, shown);
      }),
    ),
  );
  const made = element(
    "table",
    { class: "data " + (wide ? "wide " : "") + (columns.length > 8 ? "dense " : "") + name },
    element("caption", { class: "hidden" }, label),
    element("thead", {}, element("tr", {}, head)),
    element("tbody", {}, body),
  );
  return scroll(label, made);
}

function details(title, ...children) {
  return element("details", {}, element("summary", {}, title), ...children);
}

function format(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size < 1) return String(Number(value.toPrecision(3)));
  const digits = size >= 10000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function compact(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e9) return Number((value / 1e9).toPrecision(3)) + "G";
  if (size >= 1e6) return Number((value / 1e6).toPrecision(3)) + "M";
  if (size >= 1e4) return Number((value / 1e3).toPrecision(3)) + "k";
  return String(Number(value.toPrecision(4)));
}

/* The label of a tick, with so many digits that neighbours differ. */
function tick(value, distance) {
  if (value === null) return "";
  const size = Math.abs(value);
  const [scale, suffix] = size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 && distance >= 100 ? [1e3, "k"] : [1, ""];
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(distance / scale)) + 1, 0), 12);
  return Number((value / scale).toFixed(digits)) + suffix;
}

function range(pair) {
  return format(pair[0]) + (pair[0] < 0 ? " to " : "–") + format(pair[1]);
}

function status(text, name) {
  return element("span", { class: "status status-" + (name || text) }, text);
}

// Colours

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function seriesColour(series, index) {
  return colour("s" + (((series.colour ?? index) % 8) + 1));
}

function translucent(hex, share) {
  return hex + Math.round(255 * share).toString(16).padStart(2, "0");
}

// Charts

const FONT = "12px system-ui, sans-serif";

function axis(label, options) {
  return Object.assign(
    {
      label,
      labelFont: FONT,
      labelSize: 18,
      font: FONT,
      stroke: colour("muted"),
      grid: { stroke: colour("grid"), width: 1 },
      ticks: { stroke: colour("grid"), width: 1, size: 4 },
      values: (u, splits, index, space, distance) =>
        splits.map((value) => (u.scales[index ? "y" : "x"].distr === 3 ? compact(value) : tick(value, distance))),
    },
    options,
  );
}

function drawMarks(chart) {
  return (u) => {
    const context = u.ctx;
    const ratio = devicePixelRatio;
    context.save();
    context.font = 11 * ratio + "px system-ui, sans-serif";
    context.textBaseline = "top";
    context.textAlign = "left";
    const ends = []; // where the last label of each row of labels ends
    for (const mark of chart.marks || []) {
      const x = u.valToPos(mark.x, "x", true);
      if (!(x >= u.bbox.left && x <= u.bbox.left + u.bbox.width)) continue;
      context.strokeStyle = colour("muted");
      context.lineWidth = ratio;
      context.setLineDash([4 * ratio, 3 * ratio]);
      context.beginPath();
      context.moveTo(x, u.bbox.top);
      context.lineTo(x, u.bbox.top + u.bbox.height);
      context.stroke();
      const width = context.measureText(mark.label).width;
      const right = x + width + 6 * ratio < u.bbox.left + u.bbox.width;
      context.fillStyle = colour("text");
      const left = right ? x + 3 * ratio : x - width - 3 * ratio;
      const free = ends.findIndex((end) => end < left);
      const row = free < 0 ? ends.length : free;
      ends[row] = left + width + 4 * ratio;
      context.fillText(mark.label, left, u.bbox.top + (2 + 13 * row) * ratio);
    }
    context.textBaseline = "bottom";
    for (const line of chart.lines || []) {
      const y = u.valToPos(line.y, "y", true);
      if (!(y >= u.bbox.top && y <= u.bbox.top + u.bbox.height)) continue;
      context.strokeStyle = context.fillStyle = colour("bad");
      context.lineWidth = 1.5 * ratio;
      context.setLineDash([6 * ratio, 3 * ratio]);
      context.beginPath();
      context.moveTo(u.bbox.left, y);
      context.lineTo(u.bbox.left + u.bbox.width, y);
      context.stroke();
      context.fillText(line.label, u.bbox.left + 4 * ratio, y - 2 * ratio);
    }
    context.restore();
  };
}

/* The intervals and the names of points. */
function drawPoints(chart) {
  return (u) => {
    const context = u.ctx;
    const ratio = devicePixelRatio;
    context.save();
    context.font = 11 * ratio + "px system-ui, sans-serif";
    context.textAlign = "left";
    chart.series.forEach((series, index) => {
      if (!u.series[index + 1].show) return;
      context.strokeStyle = seriesColour(series, index);
      context.fillStyle = colour("text");
      context.lineWidth = 1.5 * ratio;
      chart.x.forEach((value, i) => {
        if (series.values[i] === null) return;
        const x = u.valToPos(value, "x", true);
        if (series.low && series.low[i] !== null && series.low[i] !== undefined) {
          const inside = (value) => Math.min(Math.max(u.valToPos(value, "y", true), u.bbox.top), u.bbox.top + u.bbox.height);
          context.beginPath();
          context.moveTo(x, inside(series.low[i]));
          context.lineTo(x, inside(series.high[i]));
          context.stroke();
        }
        if (series.names && series.names[i]) {
          const width = context.measureText(series.names[i]).width;
          const right = x + width + 8 * ratio < u.bbox.left + u.bbox.width;
          const y = u.valToPos(series.values[i], "y", true) - 7 * ratio;
          context.fillText(series.names[i], right ? x + 6 * ratio : x - width - 6 * ratio, y);
        }
      });
    });
    context.restore();
  };
}

function chartOptions(chart, width, height) {
  const paths = chart.kind === "steps" ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear();
  const headroom = (chart.marks || []).length ? 1.2 : 1.06;
  const highestLine = Math.max(0, ...(chart.lines || []).map((line) => line.y));
  const hasPoints = chart.kind === "points" || chart.kind === "scatter";
  const single = chart.series.length === 1 && !hasPoints;
  return {
    width,
    height,
    padding: [10, 14, 0, 0],
    cursor: { points: { size: 7 }, sync: chart.sync ? { key: chart.sync } : undefined, drag: { x: true, y: false } },
    scales: {
      x: { time: false, distr: chart.log_x ? 3 : 1 },
      y: chart.log_y
        ? { distr: 3 }
        : { range: (u, low, high) => (low === null ? [0, 1] : [Math.min(0, low), Math.max(high, highestLine) * headroom || 1]) },
    },
    axes: [axis(chart.x_label, { size: 34 }), axis(chart.y_label, { size: 52 })],
    legend: { live: true, markers: { width: 2 } },
    series: [
      { label: chart.x_label, value: (u, value) => (value === null ? "–" : format(value)) },
      ...chart.series.map((series, index) => ({
        label: series.label,
        stroke: seriesColour(series, index),
        width: 2,
        fill: single ? translucent(seriesColour(series, index), Number(colour("fill"))) : undefined,
        paths: chart.kind === "scatter" && index === 0 ? () => null : paths,
        spanGaps: chart.kind !== "steps",
        points: { show: hasPoints || chart.x.length < 3, size: 7 },
        value: (u, value) => (value === null ? "–" : format(value)),
      })),
    ],
    hooks: { draw: [drawMarks(chart), ...(hasPoints ? [drawPoints(chart)] : [])] },
  };
}

function summarise(chart) {
  const parts = chart.series.map((series) => {
    const known = series.values.filter((value) => value !== null);
    if (!known.length) return series.label + ": no values";
    return series.label + ": " + format(Math.min(...known)) + " to " + format(Math.max(...known));
  });
  const marks = (chart.marks || []).map((mark) => mark.label + " at " + format(mark.x));
  const lines = (chart.lines || []).map((line) => line.label + " at " + format(line.y));
  return chart.title + ". " + chart.y_label + " against " + chart.x_label + ". " + [...parts, ...marks, ...lines].join("; ") + ".";
}

/* The data that uPlot draws: the last step lasts until the end of the chart. */
function plotted(chart) {
  const rows = [chart.x, ...chart.series.map((series) => series.values)];
  return typeof chart.end === "number" ? rows.map((row, i) => [...row, i ? row.at(-1) : chart.end]) : rows;
}

/* A figure with a chart, a sentence, and the same data as a table. */
function figure(chart) {
  const holder = element("div", {
    class: "plot",
    role: "img",
    tabindex: "0",
    "data-chart": chart.id,
    "aria-label": summarise(chart) + " The left and right arrow keys read its values.",
  });
  const readout = element("p", { class: "readout hidden", "aria-live": "polite" });
  const rows = () =>
    chart.x.map((x, i) => [x, ...chart.series.map((series) => series.values[i])]).filter((row) => row.some((v, i) => i && v !== null));
  const more = details("Values");
  more.addEventListener("toggle", () => {
    if (more.open && more.children.length === 1) {
      const columns = [chart.x_label, ...chart.series.map((series) => series.label)];
      more.append(table("Values of " + chart.title, columns, rows(), { text: [] }));
    }
  });
  const plot = {
    chart,
    holder,
    readout,
    height: 230,
    make: (width, height) => new uPlot(chartOptions(chart, width, height), plotted(chart), holder),
  };
  plots.push(plot);
  holder.addEventListener("keydown", (event) => moveCursor(plot, event));
  return element(
    "figure",
    { id: "chart-" + chart.id },
    element("h3", {}, chart.title),
    element("figcaption", {}, chart.caption || ""),
    holder,
    readout,
    more,
  );
}

function moveCursor(plot, event) {
  const { u, chart, readout } = plot;
  const last = chart.x.length - 1;
  const at = u.cursor.idx === null || u.cursor.idx === undefined ? -1 : u.cursor.idx;
  const next = { ArrowLeft: Math.max(at - 1, 0), ArrowRight: Math.min(at + 1, last), Home: 0, End: last }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const left = u.valToPos(chart.x[next], "x");
  u.setCursor({ left, top: u.over.clientHeight / 2 });
  const values = chart.series.map((series) => series.label + " " + format(series.values[next]));
  readout.textContent = chart.x_label + " " + format(chart.x[next]) + ": " + values.join(", ");
}

function grid(charts, one) {
  return element("div", { class: "charts" + (one ? " one" : "") }, charts.map(figure));
}

// The swim lane of sessions

const OUTCOMES = ["succeeded", "failed", "cancelled"];

function lanesFigure(lanes) {
  const first = Math.min(...lanes.bars.map((bar) => bar[1]));
  const last = Math.max(...lanes.bars.map((bar) => bar[3]));
  const failed = lanes.bars.filter((bar) => bar[4] === 1).length;
  const holder = element("div", {
    class: "plot",
    role: "img",
    tabindex: "0",
    "data-chart": lanes.id,
    "aria-label":
      `${lanes.title}. ${lanes.bars.length} requests in ${lanes.lanes} lanes from ${format(first)} s to ${format(last)} s, ` +
      `${failed} of them failed. The left and right arrow keys go through the requests.`,
  });
  const readout = element("p", { class: "readout", "aria-live": "polite" }, "Point at a bar to see its request.");
  let chosen = -1;

  function describe(bar) {
    const wait = bar[2] === null ? "" : `, first content after ${format((bar[2] - bar[1]) * 1000)} ms`;
    return (
      `Session ${bar[5]}, turn ${bar[6]}: ${OUTCOMES[bar[4]]}, started at ${bar[1].toFixed(3)} s${wait}, ` +
      `took ${format((bar[3] - bar[1]) * 1000)} ms.`
    );
  }

  function draw(u) {
    const context = u.ctx;
    context.save();
    context.beginPath();
    context.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    context.clip();
    const row = u.bbox.height / lanes.lanes;
    const gap = Math.min(row * 0.25, 3 * devicePixelRatio);
    const colours = [colour("s1"), colour("s2"), colour("s8")];
    lanes.bars.forEach((bar, index) => {
      const [lane, start, content, end, outcome] = bar;
      const x = u.valToPos(start, "x", true);
      const right = Math.max(u.valToPos(end, "x", true), x + 1);
      const y = u.bbox.top + lane * row + gap / 2;
      context.fillStyle = translucent(colours[outcome], 0.45);
      context.fillRect(x, y, right - x, row - gap);
      if (content !== null) {
        const middle = u.valToPos(content, "x", true);
        context.fillStyle = colours[outcome];
        context.fillRect(middle, y, Math.max(right - middle, 1), row - gap);
      }
      if (index === chosen) {
        context.strokeStyle = colour("text");
        context.lineWidth = 2 * devicePixelRatio;
        context.strokeRect(x, y, right - x, row - gap);
      }
    });
    context.restore();
  }

  function choose(u, index) {
    if (index === chosen) return;
    chosen = index;
    if (index >= 0) readout.textContent = describe(lanes.bars[index]);
    u.redraw(false);
  }

  const plot = {
    chart: lanes,
    holder,
    readout,
    height: Math.min(90 + lanes.lanes * 12, 520),
    make: (width, height) =>
      new uPlot(
        {
          width,
          height,
          padding: [10, 14, 0, 0],
          cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
          legend: { show: false },
          scales: { x: { time: false }, y: { range: [lanes.lanes, 0] } },
          axes: [axis("Time (s)", { size: 34 }), axis("Lane", { size: 52, incrs: [1, 2, 5, 10, 20, 50] })],
          series: [{}, { show: true, paths: () => null, points: { show: false } }],
          hooks: {
            draw: [draw],
            setCursor: [
              (u) => {
                if (u.cursor.left === null || u.cursor.left < 0) return;
                const time = u.posToVal(u.cursor.left, "x");
                const lane = Math.floor((u.cursor.top / u.over.clientHeight) * lanes.lanes);
                const found = lanes.bars.findIndex((bar) => bar[0] === lane && bar[1] <= time && time <= bar[3]);
                if (found >= 0) choose(u, found);
              },
            ],
          },
        },
        [
          [first, last],
          [0, lanes.lanes],
        ],
        holder,
      ),
  };
  plots.push(plot);
  holder.addEventListener("keydown", (event) => {
    const end = lanes.bars.length - 1;
    const next = { ArrowLeft: Math.max(chosen - 1, 0), ArrowRight: Math.min(chosen + 1, end), Home: 0, End: end }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(plot.u, next);
  });
  return element(
    "figure",
    { id: "chart-" + lanes.id },
    element("h3", {}, lanes.title),
    element("figcaption", {}, lanes.caption),
    element(
      "ul",
      { class: "key" },
      [...new Set(lanes.bars.map((bar) => bar[4]))].sort().map((outcome) =>
        element("li", {}, element("span", { style: `background:var(--${["s1", "s2", "s8"][outcome]})` }), OUTCOMES[outcome]),
      ),
    ),
    holder,
    readout,
  );
}

// Requests with their own time lines

const PARTS = {
  "waited for a slot": "s8",
  "waited for an earlier reply": "s8",
  "client delay": "s5",
  connect: "s7",
  send: "s4",
  "wait for the server": "s2",
  "first content": "s6",
  decode: "s1",
  receive: "s1",
};

function requestItem(request, longest) {
  const scale = (ms) => ((ms / longest) * 1000).toFixed(2);
  const bars = request.parts.map(([name, begin, end]) =>
    svg(
      "rect",
      {
        x: scale(begin),
        y: 2,
        width: Math.max(scale(end) - scale(begin), 0.8),
        height: 14,
        style: `fill:var(--${PARTS[name]})`,
        "fill-opacity": name === "decode" ? 0.35 : 0.85,
      },
      svg("title", {}, document.createTextNode(`${name}: ${format(end - begin)} ms`)),
    ),
  );
  const ticks = request.stamps.map((stamp) =>
    svg("line", { x1: scale(stamp), x2: scale(stamp), y1: 2, y2: 16, "stroke-width": 1, style: "stroke:var(--s1)", "vector-effect": "non-scaling-stroke" }),
  );
  const spoken = request.parts.map(([name, begin, end]) => `${name} ${format(end - begin)} ms`).join(", ");
  const chart = svg(
    "svg",
    { class: "timeline", viewBox: "0 0 1000 18", preserveAspectRatio: "none", role: "img", "aria-label": `Time line: ${spoken}` },
    ...bars,
    ...ticks,
  );
  const facts = [];
  const fact = (name, value, unit) => value !== undefined && value !== null && facts.push(element("span", {}, `${name} ${format(value)}${unit}`));
  if (request.latency !== undefined) facts.push(element("strong", {}, format(request.latency) + " ms"));
  else facts.push(element("strong", {}, "failed after " + format(request.total) + " ms"));
  fact("TTFT", request.ttft, " ms");
  fact("ITL", request.itl, " ms");
  fact("input", request.input, " tokens");
  fact("output", request.tokens, " tokens");
  facts.push(element("span", {}, `at ${request.at.toFixed(2)} s`));
  facts.push(element("span", {}, `session ${request.session}, turn ${request.turn}`));
  if (data.urls.length > 1) facts.push(element("span", {}, data.urls[request.url]));
  facts.push(element("span", { class: "id" }, "request " + request.id));
  if (request.reply) facts.push(element("span", { class: "id" }, "reply " + request.reply));
  if (request.model) facts.push(element("span", { class: "id" }, "model " + request.model));
  const item = element("li", {}, element("div", { class: "facts" }, facts), chart);
  if (request.error) {
    const code = request.error.code === null ? "" : request.error.code + " ";
    item.insertBefore(
      element("div", { class: "error" }, `${code}${request.error.type} (fault: ${request.error.owner}): ${request.error.message}`),
      chart,
    );
  }
  return item;
}

function requestList(title, requests, shown) {
  const longest = Math.max(...requests.map((request) => request.total), 0.001);
  const items = requests.map((request) => requestItem(request, longest));
  const more = items.slice(shown);
  return [
    element("h3", {}, title),
    element("ol", { class: "requests" }, items.slice(0, shown)),
    more.length ? details(`${more.length} more`, element("ol", { class: "requests" }, more)) : null,
  ];
}

function partsKey(requests) {
  const used = new Set(requests.flatMap((request) => request.parts.map((part) => part[0])));
  const names = Object.keys(PARTS).filter((name) => used.has(name));
  return element(
    "ul",
    { class: "key", "aria-label": "Colours of the parts of a request" },
    names.map((name) =>
      element("li", {}, element("span", { style: `background:var(--${PARTS[name]});opacity:${name === "decode" ? 0.5 : 0.9}` }), name),
    ),
    element("li", {}, "│ arrival of content"),
  );
}

// Parts of the page

function pageHeader() {
  document.getElementById("header").append(
    element("h1", {}, data.title),
    element("p", { class: "subtitle" }, data.subtitle),
  );
  document.getElementById("footer").append(
    element("p", {}, `Penstock ${data.version}` + (data.id ? `, benchmark ${data.id}` : "") + ". Drag over a chart to zoom, double-click to reset."),
  );
}

const GRADES = { VALID: "good", DEGRADED: "warn", INVALID: "bad" };

function verdictPanel(verdict) {
  return element(
    "div",
    { class: "panel verdict " + (GRADES[verdict.verdict] || "") },
    element("strong", {}, verdict.verdict === "NONE" ? "No certificate" : verdict.verdict),
    element("span", {}, verdict.summary),
    verdict.reasons.length ? element("ul", {}, verdict.reasons.map((reason) => element("li", {}, reason))) : null,
  );
}

/* Bounds that look like the figure itself are left out. */
function hasBounds(cell) {
  return cell.bounds && cell.bounds.some((bound) => format(bound) !== format(cell.value));
}

/* A figure, marked if there are too few requests for it. */
function figureText(cell) {
  return format(cell.value) + (cell.unsupported ? "?" : "");
}

function uncertainty(cell) {
  const lines = [];
  if (hasBounds(cell)) lines.push(element("small", { class: "bounds" }, "bounds " + range(cell.bounds)));
  if (cell.interval) lines.push(element("small", { class: "interval" }, `${Number((100 * (data.confidence || 0.95)).toPrecision(4))} % ` + range(cell.interval)));
  return lines;
}

function cardElement(name, value, more, { unit = "", tag = null } = {}) {
  return element(
    "div",
    { class: "card", "data-tag": tag },
    element("div", { class: "name" }, name),
    element("div", { class: "value" }, value, unit ? element("span", { class: "unit" }, " " + unit) : null),
    element("div", { class: "more" }, more),
  );
}

function cards() {
  const { succeeded, failed, cancelled } = data.counts;
  const total = succeeded + failed;
  const share = total ? ((100 * failed) / total).toFixed(failed && failed * 1000 < total ? 3 : 1) + " %" : "–";
  const requests = cardElement("Requests", format(total), [
    element("div", { class: failed ? "error" : null }, `${format(failed)} failed (${share})`),
    cancelled ? element("div", {}, `${format(cancelled)} cancelled`) : null,
  ]);
  const made = data.cards.map((card) =>
    cardElement(
      card.label + (card.statistic ? ", " + card.statistic : ""),
      figureText(card),
      [
        card.verdict ? element("div", {}, status(card.verdict)) : null,
        card.also ? element("div", {}, `p99 ${figureText(card.also)} ${card.unit}`) : null,
        hasBounds(card) ? element("div", {}, "true value " + range(card.bounds)) : null,
        card.interval ? element("div", {}, "95 % interval " + range(card.interval)) : null,
      ],
      card,
    ),
  );
  return element("div", { class: "cards" }, requests, made);
}

function figureTable(label, columns, given) {
  const rows = given.map((row) => [
    element("span", { title: row.note }, row.label, " ", row.verdict ? status(row.verdict) : null),
    ...row.cells.map((cell) => (cell === null ? null : element("span", {}, figureText(cell), ...uncertainty(cell)))),
  ]);
  return table(label, ["Metric", ...columns], rows, { wide: true });
}

function latencyTables({ columns, rows, steady }) {
  const marked = rows.some((row) => row.cells.some((cell) => cell && cell.unsupported));
  const keys = [
    rows.some((row) => row.cells.some((cell) => cell && hasBounds(cell))) ? "bounds: where the true value lies, given how exactly the client could observe it" : null,
    rows.some((row) => row.cells.some((cell) => cell && cell.interval)) ? "95 %: confidence interval over requests of this load" : null,
    marked ? "?: too few requests for this percentile" : null,
  ].filter(Boolean);
  const made = [
    figureTable("Latencies", columns, rows),
    keys.length ? element("p", { class: "muted" }, keys.join("; ") + ".") : null,
  ];
  if (steady) {
    made.push(details(steady.title, figureTable("Latencies in the steady state", columns, steady.rows)));
    made.at(-1).open = steady.differs;
  }
  return made;
}

function errorTable(errors) {
  const rows = errors.map((e) => [e.type, e.count, e.code, e.owner, e.message]);
  return table("Failures by kind", ["Type", "Count", "Code", "Fault", "Message"], rows, { text: [0, 3, 4], wide: true });
}

const GLYPHS = { done: "✓ done", partly: "◐ partly", missing: "✗ missing", "not applicable": "– not applicable" };

function checks(items) {
  const body = [];
  let group = null;
  for (const item of items) {
    if (item.group !== group) {
      group = item.group;
      body.push(element("tr", { class: "group" }, element("th", { colspan: "3", scope: "colgroup" }, group)));
    }
    body.push(
      element(
        "tr",
        {},
        element("th", { scope: "row" }, item.rule),
        element("td", { class: "text" }, status(GLYPHS[item.status], item.status.split(" ")[0])),
        element("td", { class: "text" }, item.text),
      ),
    );
  }
  const head = ["Practice", "Status", "This run"].map((title) => element("th", { scope: "col", class: "text" }, title));
  return scroll(
    "Checklist of good practice",
    element(
      "table",
      { class: "data wide checks" },
      element("caption", { class: "hidden" }, "Checklist of good practice"),
      element("thead", {}, element("tr", {}, head)),
      element("tbody", {}, body),
    ),
  );
}

function settingsTables() {
  const changed = data.settings.filter((row) => row[2]).map((row) => [row[0], row[1]]);
  const all = data.settings.map((row) => [row[0], row[1]]);
  return [
    element("h3", {}, "Command"),
    element("pre", { tabindex: "0", "aria-label": "Command to repeat the run", role: "region" }, data.command || "Not recorded."),
    element("h3", {}, "Settings that differ from the defaults"),
    table("Settings that differ from the defaults", ["Setting", "Value"], changed, { text: [0, 1] }),
    details("All settings", table("All settings", ["Setting", "Value"], all, { text: [0, 1] })),
    element("h3", {}, "Machine"),
    table("Machine of the client", ["Property", "Value"], Object.entries(data.machine).map(([k, v]) => [k, String(v)]), { text: [0, 1] }),
    details(
      "What the client measured of itself",
      table("What the client measured of itself", ["Figure", "Value"], Object.entries(data.client).map(([k, v]) => [k.replaceAll("_", " "), v === null ? null : typeof v === "number" ? v : String(v)]), { text: [0] }),
    ),
    element("p", { class: "muted" }, "Files beside this page: " + data.files.filter((f) => f !== "report.html").join(", ") + "."),
  ];
}

function notesPanel(notes) {
  if (!notes.length) return null;
  return element("div", { class: "panel" }, element("h3", {}, "Notes"), element("ul", {}, notes.map((note) => element("li", {}, note))));
}

function runPage() {
  section("result", "Result", "Result", "", verdictPanel(data.verdict), cards(), latencyTables(data.latencies), notesPanel(data.notes));
  if (data.distributions.length) {
    section("distributions", "Distributions", "Distributions", "Successful requests of the profiling phase.", grid(data.distributions));
  }
  if (data.timeline.length) {
    section("time-line", "Time line", "Time line", "Time 0 is the first request of the profiling phase.", grid(data.timeline));
  }
  if (data.gaps.length) section("gaps", "Gaps by token position", "Gaps", "", grid(data.gaps, true));
  if (data.lanes) section("sessions", "Sessions", "Sessions", "", element("div", { class: "charts one" }, lanesFigure(data.lanes)));
  const requests = [...data.slowest, ...data.failed];
  if (requests.length) {
    section(
      "requests",
      "Slowest and failed requests",
      "Requests",
      "Each time line begins when the request was due.",
      partsKey(requests),
      data.slowest.length ? requestList(`The ${data.slowest.length} slowest requests`, data.slowest, 8) : null,
      data.errors.length ? [element("h3", {}, "Failures by kind"), errorTable(data.errors)] : null,
      data.failed.length ? requestList(`${data.failed.length} of ${format(data.counts.failed)} failed requests`, data.failed, 8) : null,
    );
  }
  section("settings", "Settings, machine and command", "Settings", "", settingsTables());
  section("checklist", "Checklist of good practice", "Checklist", "What a sound load test does, and what this run did.", checks(data.checklist));
  const metrics = data.metrics.rows.map((row) => [row.label, ...row.cells]);
  section("metrics", "All metrics", "All metrics", "", details(`${metrics.length} metrics`, table("All metrics", ["Metric", ...data.metrics.columns], metrics, { wide: true })));
}

// Several runs

function runsCell(cell) {
  if (cell === null || typeof cell !== "object") return cell;
  if (cell.status) return status(cell.status === "failed" ? "failed" : cell.status);
  const sign = cell.signed && cell.value > 0 ? "+" : "";
  return element("span", {}, sign + figureText(cell), ...uncertainty(cell));
}

function runsTable(label, { columns, rows, text = [0] }) {
  const marked = rows.some((row) => row.some((cell) => cell && cell.unsupported));
  return [
    table(label, columns, rows.map((row) => row.map(runsCell)), { text, wide: true }),
    marked ? element("p", { class: "muted" }, "?: too few requests for this percentile.") : null,
  ];
}

function runsPage() {
  const [first, ...others] = data.conclusions;
  const list = others.length ? element("ul", {}, data.conclusions.map((text) => element("li", {}, text))) : element("p", {}, first);
  const panel = first ? element("div", { class: "panel" }, list) : null;
  const cards = (data.cards || []).map((card) => cardElement(card.label, typeof card.value === "string" ? card.value : format(card.value), card.more.map((text) => element("div", {}, text))));
  section(
    "result",
    "Result",
    "Result",
    "",
    cards.length ? element("div", { class: "cards" }, cards) : null,
    panel,
    data.loads ? runsTable("Loads", data.loads) : runsTable("All runs", data.overview),
    notesPanel(data.notes),
  );
  if (data.charts.length) section("charts", "Charts", "Charts", "", grid(data.charts));
  if (data.loads) {
    section("loads", "All requests of each load", "Loads", "Also the first requests, which no decision counts.", runsTable("All requests of each load", data.overview));
  }
  if (data.differences.length) {
    section(
      "differences",
      "Differences",
      "Differences",
      "",
      data.differences.map((each) => [element("h3", {}, each.title), runsTable(each.title, each)]),
    );
  }
  const texts = data.changed.columns.map((_, index) => index);
  const changed = data.changed.rows.length
    ? table("Settings that changed", data.changed.columns, data.changed.rows, { text: texts })
    : element("p", {}, "No setting differs between the runs.");
  section("settings", "What changed in the settings", "Settings", "", changed);
  const links = data.runs.map((run) => element("li", {}, run.href ? element("a", { href: run.href }, run.name) : run.name));
  section("runs", "The page of each run", "Runs", "", element("ul", {}, links));
}

// Drawing

/* On paper, charts have fixed sizes, because the page has no size before it is printed. */
function isPrinted() {
  return document.documentElement.dataset.theme === "print";
}

function availableWidth(plot) {
  if (isPrinted()) return plot.holder.closest(".charts.one") ? 660 : 315;
  return Math.max(plot.holder.clientWidth, 200);
}

function availableHeight(plot) {
  return isPrinted() ? Math.min(plot.height, plot.chart.bars ? 400 : 165) : plot.height;
}

function drawPlot(plot) {
  if (plot.u) plot.u.destroy();
  plot.holder.style.minHeight = "";
  plot.u = plot.make(availableWidth(plot), availableHeight(plot));
  plot.holder.dataset.drawn = "true";
}

function drawAll() {
  for (const plot of plots) {
    if (plot.u) drawPlot(plot);
  }
}

/* Charts are drawn when they come near the screen, so that a page opens at once. */
function drawWhenVisible() {
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        const plot = plots.find((each) => each.holder === entry.target);
        if (plot && !plot.u) drawPlot(plot);
        observer.unobserve(entry.target);
      }
    },
    { rootMargin: "600px" },
  );
  for (const plot of plots) {
    plot.holder.style.minHeight = plot.height + "px";
    observer.observe(plot.holder);
  }
}

let pending = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(() => {
    for (const plot of plots) {
      const width = availableWidth(plot);
      if (plot.u && plot.u.width !== width) plot.u.setSize({ width, height: plot.height });
    }
  });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "print";
  plots.forEach(drawPlot);
});
addEventListener("afterprint", () => {
  delete document.documentElement.dataset.theme;
  drawAll();
});

pageHeader();
if (data.kind === "run") runPage();
else runsPage();
drawWhenVisible();
