// Pictures above the tables of a view: drawn as SVG from the columns of its section, without a library.

const CHART = { width: 1000, height: 280, left: 74, right: 34, top: 14, bottom: 40 };

function svg(tag, attributes = {}, ...children) {
  const created = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") created.textContent = value;
    else created.setAttribute(key, value);
  }
  created.append(...children);
  return created;
}

// The picture of a section, or null if it has none or too little to draw.
function sectionChart(data, section) {
  const draw = { roofline: rooflineChart, steps: stepsChart, devices: overlapChart, memory: memoryChart }[section.id];
  const values = Object.fromEntries(section.columns.map((column) => [column.name, column.values]));
  return draw ? draw(values, section, data) : null;
}

function figure(label, height, marks, keys = []) {
  const drawing = svg("svg", { viewBox: `0 0 ${CHART.width} ${height}`, role: "img", "aria-label": label }, ...marks);
  const legend = keys.map(([name, text]) => element("li", {}, element("i", { style: `background: var(--${name})` }), text));
  return element("figure", { class: "chart panel" }, drawing, ...(legend.length ? [element("ul", { class: "keys" }, ...legend)] : []));
}

const titled = (mark, text) => { mark.append(svg("title", { text })); return mark; };

// A scale from values to pixels; `log` for decades.
function scale(low, high, from, to, log = false) {
  const by = log ? Math.log10 : (value) => value;
  const span = by(high) - by(low) || 1;
  return (value) => from + ((by(value) - by(low)) / span) * (to - from);
}

function decades(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) all.push(10 ** power);
  return all.filter((value) => value >= low && value <= high);
}

// Four to eight round numbers from 0 to the highest value.
function rounds(high) {
  const step = [1, 2, 5, 10].map((n) => n * 10 ** Math.floor(Math.log10(high / 4 || 1))).find((n) => high / n <= 6) ?? high;
  return Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, n) => n * step);
}

function gridX(x, ticks, text, title, height) {
  return [...ticks.flatMap((tick) => [
    svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: CHART.top, y2: height - CHART.bottom }),
    svg("text", { x: x(tick), y: height - CHART.bottom + 16, "text-anchor": "middle", text: text(tick) }),
  ]), svg("text", { class: "title", x: (CHART.left + CHART.width) / 2, y: height - 6, "text-anchor": "middle", text: title })];
}

function gridY(y, ticks, text, title) {
  return [...ticks.flatMap((tick) => [
    svg("line", { class: "grid", x1: CHART.left, x2: CHART.width - CHART.right, y1: y(tick), y2: y(tick) }),
    svg("text", { x: CHART.left - 8, y: y(tick) + 4, "text-anchor": "end", text: text(tick) }),
  ]), svg("text", { class: "title", x: 14, y: (CHART.top + CHART.height - CHART.bottom) / 2, "text-anchor": "middle",
    transform: `rotate(-90 14 ${(CHART.top + CHART.height - CHART.bottom) / 2})`, text: title })];
}

const MOST_POINTS = 500;

// Each instruction at its intensity and rate, as large as its share of the time, below the roofs of the device.
function rooflineChart(values, section) {
  const rate = values["GFLOP/s"], intensity = values["flops/byte"], time = values.time;
  const rows = [];
  for (let i = 0; i < time.length && rows.length < MOST_POINTS; i++) if (rate[i] > 0 && intensity?.[i] > 0) rows.push(i);
  if (!rows.length) return null;
  const peak = section.peak, knee = peak ? peak.flops_per_s / peak.bytes_per_s : 1;
  const xs = [...rows.map((i) => intensity[i]), ...(peak ? [knee] : [])], ys = [...rows.map((i) => rate[i]), ...(peak ? [peak.flops_per_s / 1e9] : [])];
  const [left, right] = [Math.min(...xs) / 2, Math.max(...xs) * 4], [low, high] = [Math.min(...ys) / 2, Math.max(...ys) * 2];
  const x = scale(left, right, CHART.left, CHART.width - CHART.right, true), y = scale(low, high, CHART.height - CHART.bottom, CHART.top, true);
  const marks = [...gridX(x, decades(left, right), shortNumber, "flops per byte", CHART.height), ...gridY(y, decades(low, high), shortNumber, "GFLOP/s")];
  if (peak) {
    const roof = (at) => Math.max(low, Math.min(peak.flops_per_s, at * peak.bytes_per_s) / 1e9);
    const start = Math.max(left, (low * 1e9) / peak.bytes_per_s);
    const points = [start, knee, right].filter((at) => at >= start).map((at) => `${x(at)},${y(roof(at))}`).join(" ");
    marks.push(titled(svg("polyline", { class: "roof", points }), `${peak.name}: ${shortNumber(peak.flops_per_s / 1e9)} GFLOP/s, ${shortNumber(peak.bytes_per_s / 1e9)} GB/s`));
  }
  const most = Math.max(...rows.map((i) => time[i]));
  for (const i of rows.reverse()) {
    const dot = svg("circle", { class: values.bound?.[i] === "compute" ? "compute" : "memory", cx: x(intensity[i]), cy: y(rate[i]), r: 3 + 11 * Math.sqrt(time[i] / most) });
    marks.push(titled(dot, `${values.instruction[i]}: ${duration(time[i])}, ${rate[i].toFixed(2)} GFLOP/s at ${intensity[i].toFixed(2)} flops/byte`));
  }
  const keys = values.bound ? [["matrix", "bound by compute"], ["movement", "bound by memory"]] : [["movement", "instruction; its area is its time"]];
  return figure(`Roofline of ${rows.length} instructions`, CHART.height, marks, keys);
}

const shortNumber = (value) => (value >= 1e4 || (value && value < 1e-2) ? value.toExponential(0) : Number(value.toPrecision(3)).toLocaleString("en"));

// Time of each step: on the host a frame, on the device a bar, of which exposed communication is red.
function stepsChart(values) {
  const device = values["device time"], host = values["host time"], exposed = values.exposed;
  const shown = Math.min(device?.length ?? 0, MOST_POINTS);
  if (shown < 2) return null;
  const highest = Math.max(...device.slice(0, shown), ...host.slice(0, shown));
  const [unit, factor] = columnUnit([highest]);
  const y = scale(0, highest * 1.05, CHART.height - CHART.bottom, CHART.top), x = scale(0, shown, CHART.left, CHART.width - CHART.right);
  const every = Math.ceil(shown / 20), width = x(1) - x(0);
  const marks = gridY(y, rounds(highest / factor).map((value) => value * factor), (value) => shortNumber(value / factor), unit);
  for (let i = 0; i < shown; i++) {
    const bar = (ns, from, name, inset) => svg("rect", { class: name, x: x(i) + width * inset, width: Math.max(1, width * (1 - 2 * inset)), y: y(from + ns), height: Math.max(0, y(from) - y(from + ns)) });
    const label = `rank ${values.rank?.[i] ?? 0}, step ${values.step[i]}: device ${duration(device[i])}, host ${duration(host[i])}${exposed?.[i] ? `, exposed communication ${duration(exposed[i])}` : ""}`;
    marks.push(titled(bar(device[i], 0, "device", 0.2), label));
    if (exposed?.[i]) marks.push(titled(bar(exposed[i], 0, "exposed", 0.2), label));
    marks.push(titled(bar(host[i], 0, "host", 0.08), label));
    if (i % every === 0) marks.push(svg("text", { x: x(i) + width / 2, y: CHART.height - CHART.bottom + 16, "text-anchor": "middle", text: values.step[i] }));
  }
  marks.push(svg("text", { class: "title", x: CHART.width / 2, y: CHART.height - 6, "text-anchor": "middle", text: "step" }));
  const keys = [["bar", "device time, summed over its ops"], ["faint", "host time"], ...(exposed?.some(Boolean) ? [["exposed", "exposed communication"]] : [])];
  return figure(`Times of ${shown} steps`, CHART.height, marks, keys);
}

// What each device does from its first op to its last.
function overlapChart(values) {
  const rows = Math.min(values.device?.length ?? 0, 64);
  if (!rows || !values.idle) return null;
  const row = 22, height = CHART.top + rows * row + CHART.bottom;
  const x = scale(0, 1, CHART.left + 40, CHART.width - CHART.right);
  const marks = gridX(x, [0, 0.25, 0.5, 0.75, 1], (value) => `${100 * value} %`, "of the time from first op to last", height);
  for (let i = 0; i < rows; i++) {
    const span = values.span?.[i] || (values["idle share"][i] > 0 ? values.idle[i] / values["idle share"][i] : 0);
    if (!span) continue;
    const communication = values.communication?.[i] ?? 0, exposed = values.exposed?.[i] ?? 0;
    const parts = [["matrix", "computes alone", span - values.idle[i] - communication], ["communication", "computes and communicates", communication - exposed], ["exposed", "communicates alone", exposed], ["idle", "idle", values.idle[i]]];
    let from = 0;
    for (const [name, text, ns] of parts) {
      const share = Math.max(0, ns) / span;
      marks.push(titled(svg("rect", { class: name, x: x(from), width: Math.max(0, x(from + share) - x(from)), y: CHART.top + i * row + 3, height: row - 6 }), `rank ${values.rank[i]}, device ${values.device[i]}: ${text} for ${duration(Math.max(0, ns))}, ${percent(share)}`));
      from += share;
    }
    marks.push(svg("text", { x: CHART.left + 32, y: CHART.top + i * row + 15, "text-anchor": "end", text: `rank ${values.rank[i]}, ${values.device[i]}` }));
  }
  const keys = [["matrix", "computes alone"], ["communication", "computes and communicates"], ["exposed", "communicates alone"], ["none", "idle"]];
  return figure(`Use of ${rows} devices`, height, marks, values.communication?.some(Boolean) ? keys : [keys[0], keys[3]]);
}

// Memory that a program holds, in the order of its schedule; the peak names the line that reaches it.
function memoryChart(values, section, data) {
  const curve = section.curve;
  if (!curve || curve.bytes.length < 2) return null;
  const highest = Math.max(...curve.bytes), at = curve.bytes.indexOf(highest);
  const [unit, factor] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]].find(([, limit]) => highest >= limit);
  const x = scale(0, curve.bytes.length - 1, CHART.left, CHART.width - CHART.right), y = scale(0, highest * 1.08, CHART.height - CHART.bottom, CHART.top);
  const marks = gridY(y, rounds(highest / factor).map((value) => value * factor), (value) => shortNumber(value / factor), unit);
  let path = `M${x(0)},${y(0)}`;
  for (let i = 0; i < curve.bytes.length; i++) path += `L${x(i)},${y(curve.bytes[i])}L${x(Math.min(i + 1, curve.bytes.length - 1))},${y(curve.bytes[i])}`;
  marks.push(svg("path", { class: "memory-curve", d: `${path}L${x(curve.bytes.length - 1)},${y(0)}Z` }));
  marks.push(svg("line", { class: "always", x1: CHART.left, x2: CHART.width - CHART.right, y1: y(curve.always_bytes), y2: y(curve.always_bytes) }));
  const frame = curve.peak_frame, user = frame === NO_STACK ? NO_STACK : data.userFrame(frame);
  const line = user === NO_STACK ? "" : ` at ${baseName(data.fileOf(user))}:${data.lineOf(user)}`;
  const label = `${size(highest)}${line}: ${curve.peak_instruction}`, right = x(at) > CHART.width / 2;
  marks.push(svg("circle", { class: "peak", cx: x(at), cy: y(highest), r: 5 }), svg("text", { class: "peak-text", x: x(at) + (right ? -10 : 10), y: y(highest) + 4, "text-anchor": right ? "end" : "start", text: label }));
  marks.push(svg("text", { class: "title", x: CHART.width / 2, y: CHART.height - 6, "text-anchor": "middle", text: `values of ${curve.program} in the order of its schedule` }));
  return figure(`Memory of ${curve.program}: ${label}`, CHART.height, marks, [["bar", "temporary values"], ["accent", "below the line: arguments, results and constants, held all the time"]]);
}
