// The canvas of the timeline, which draws a hundred thousand ops within a frame: ops of a lane within one pixel become one bar.

const LANE = 22, GAP = 3, STRIP = 9, RULER = 26, OVERVIEW = 44, LABEL = 190;
const GROUPS = ["matrix", "fusion", "communication", "movement", "other"]; // colours, in the order of data.groups

// The first index in [low, high) whose value is not smaller.
function lowerBound(values, wanted, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low;
}

// Rows to draw, top to bottom: a strip of exposed communication under each device that communicates, and its lanes.
function timelineRows(data) {
  const exposed = new Map(), { exposed: spans } = data.timeline;
  for (let i = 0; i < spans.start.length; i++) {
    const device = `${spans.rank[i]}/${spans.device[i]}`;
    if (!exposed.has(device)) exposed.set(device, []);
    exposed.get(device).push([spans.start[i], spans.start[i] + spans.duration[i]]);
  }
  const rows = [];
  const several = new Set(data.timeline.lanes.map((one) => one.rank)).size > 1;
  let at = 0, y = 0, previous = null;
  for (const lane of data.timeline.lanes) {
    const device = `${lane.rank}/${lane.device}`;
    if (device !== previous) {
      const name = `${several ? `rank ${lane.rank}, ` : ""}device ${lane.device}`;
      rows.push({ kind: "device", label: name, y, height: 20 });
      y += 20;
      if (exposed.has(device)) { rows.push({ kind: "exposed", label: "exposed communication", spans: exposed.get(device), y, height: STRIP }); y += STRIP + GAP; }
      previous = device;
    }
    rows.push({ kind: "lane", label: lane.sub ? "" : lane.stream, first: at, last: at + lane.count, y, height: LANE - GAP });
    y += LANE;
    at += lane.count;
  }
  return { rows, height: y + 6 };
}

class TimelineCanvas {
  constructor(data, canvas) {
    Object.assign(this, { data, canvas, context: canvas.getContext("2d"), top: 0, chosen: -1 });
    Object.assign(this, timelineRows(data));
    const { start, duration: length } = data.timeline;
    let end = 1;
    for (let i = 0; i < start.length; i++) end = Math.max(end, start[i] + length[i]);
    this.end = end;
    this.from = 0;
    this.to = end;
    this.readColours();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.readColours(); this.draw(); });
  }

  readColours() {
    this.colours = GROUPS.map(colour);
    [this.ink, this.soft, this.rule, this.panel, this.red, this.accent, this.ground] = ["ink", "soft", "rule", "panel", "exposed", "accent", "ground"].map(colour);
    this.density = null;
  }

  resize() {
    const scale = devicePixelRatio || 1, width = this.canvas.clientWidth || 1000;
    this.viewHeight = Math.min(this.height, Math.max(120, innerHeight - 420));
    this.canvas.style.height = `${OVERVIEW + RULER + this.viewHeight}px`;
    this.canvas.width = width * scale;
    this.canvas.height = (OVERVIEW + RULER + this.viewHeight) * scale;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.width = width;
    this.label = width < 700 ? 84 : LABEL;
    this.density = null;
    this.draw();
  }

  x(ns) { return this.label + ((ns - this.from) / (this.to - this.from)) * (this.width - this.label); }
  ns(x) { return this.from + ((x - this.label) / (this.width - this.label)) * (this.to - this.from); }

  // Shows [from, to), limited to the trace and at least 20 ns long.
  show(from, to) {
    const span = Math.min(this.end, Math.max(20, to - from));
    this.from = Math.max(0, Math.min(this.end - span, from));
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, x) {
    const at = this.ns(Math.max(this.label, x)), span = (this.to - this.from) * factor;
    this.show(at - ((at - this.from) / (this.to - this.from)) * span, at + ((this.to - at) / (this.to - this.from)) * span);
  }

  pan(pixels) {
    const ns = (pixels / (this.width - this.label)) * (this.to - this.from);
    this.show(this.from + ns, this.to + ns);
  }

  scroll(pixels) {
    this.top = Math.max(0, Math.min(this.height - this.viewHeight, this.top + pixels));
    this.draw();
  }

  draw() {
    if (!this.width) return;
    const { context: c } = this;
    c.fillStyle = this.panel;
    c.fillRect(0, 0, this.width, OVERVIEW + RULER + this.viewHeight);
    c.font = "12px system-ui, 'Liberation Sans', sans-serif";
    c.textBaseline = "middle";
    c.save();
    c.beginPath();
    c.rect(0, OVERVIEW + RULER, this.width, this.viewHeight);
    c.clip();
    for (const row of this.rows) {
      const y = OVERVIEW + RULER + row.y - this.top;
      if (y + row.height >= OVERVIEW + RULER && y <= OVERVIEW + RULER + this.viewHeight) this.drawRow(row, y);
    }
    c.restore();
    this.drawRuler();
    this.drawOverview();
  }

  drawRow(row, y) {
    const { context: c } = this;
    c.fillStyle = row.kind === "device" ? this.ink : row.kind === "exposed" ? this.red : this.soft;
    c.font = `${row.kind === "device" ? "600 12px" : row.kind === "exposed" ? "11px" : "12px"} system-ui, 'Liberation Sans', sans-serif`;
    c.fillText(fit(c, row.label, this.label - 18), 12, y + row.height / 2 + (row.kind === "device" ? 2 : 0));
    if (row.kind === "device") {
      c.fillStyle = this.rule;
      c.fillRect(0, y, this.width, 1);
    } else if (row.kind === "exposed") {
      c.fillStyle = this.red;
      for (const [start, end] of row.spans) if (end > this.from && start < this.to) this.bar(start, end, y, row.height);
    } else this.drawLane(row, y);
  }

  bar(start, end, y, height) {
    const left = Math.max(this.label, this.x(start)), right = Math.min(this.width, this.x(end));
    if (right > this.label) this.context.fillRect(left, y, Math.max(0.7, right - left), height);
    return [left, right];
  }

  drawLane(row, y) {
    const { context: c, data: { timeline: t, instructions } } = this;
    const pixel = (this.to - this.from) / (this.width - this.label);
    let i = Math.max(row.first, lowerBound(t.start, this.from, row.first, row.last) - 1);
    // The op before may still be running. Ops of a lane do not overlap, so one step back is enough.
    while (i < row.last && t.start[i] < this.to) {
      const kind = instructions.group[t.instruction[i]] ?? 4;
      c.fillStyle = this.colours[kind];
      c.globalAlpha = t.merged[i] > 1 ? 0.55 : 1;
      const [left, right] = this.bar(t.start[i], t.start[i] + t.duration[i], y, row.height);
      c.globalAlpha = 1;
      if (right - left > 34) {
        c.save();
        c.beginPath();
        c.rect(left, y, right - left, row.height);
        c.clip();
        c.fillStyle = "#fff";
        c.font = "11.5px system-ui, 'Liberation Sans', sans-serif";
        c.fillText(t.merged[i] > 1 ? `${t.merged[i]} ops` : instructions.name[t.instruction[i]], left + 5, y + row.height / 2 + 0.5);
        c.restore();
      }
      if (i === this.chosen) { c.strokeStyle = this.ink; c.lineWidth = 2; c.strokeRect(left - 1, y - 1, Math.max(3, right - left + 2), row.height + 2); }
      const next = t.start[i] + t.duration[i];
      i++;
      // Skip the other ops that begin in this half pixel, except the last, which may extend beyond it.
      if (next - t.start[i - 1] < pixel / 3) i = Math.max(i, lowerBound(t.start, t.start[i - 1] + pixel / 2, i, row.last) - 1);
    }
  }

  drawRuler() {
    const { context: c } = this, y = OVERVIEW;
    const step = niceStep(((this.to - this.from) * 110) / (this.width - this.label));
    c.fillStyle = this.soft;
    c.font = "11.5px system-ui, 'Liberation Sans', sans-serif";
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = this.x(at);
      c.fillStyle = this.rule;
      c.fillRect(x, y + RULER - 5, 1, 5);
      c.fillStyle = this.soft;
      if (x < this.width - 50) c.fillText(tick(at, step), x + 4, y + RULER / 2);
    }
    c.fillStyle = this.rule;
    c.fillRect(0, y + RULER - 1, this.width, 1);
    c.fillStyle = this.soft;
    c.fillText(duration(this.to - this.from), 12, y + RULER / 2);
  }

  // The busy share of the whole trace in steps of a few pixels, and the part that is shown below.
  drawOverview() {
    const { context: c } = this, wide = this.width - this.label, bins = Math.max(1, Math.floor(wide / 2));
    this.density ??= density(this.data.timeline, bins, this.end);
    c.fillStyle = this.colours[1];
    for (let i = 0; i < bins; i++) {
      const height = Math.min(1, this.density[i]) * (OVERVIEW - 12);
      c.fillRect(this.label + i * 2, OVERVIEW - 6 - height, 1.6, height);
    }
    const left = this.label + (this.from / this.end) * wide, right = this.label + (this.to / this.end) * wide;
    c.fillStyle = this.ground;
    c.globalAlpha = 0.72;
    c.fillRect(this.label, 2, left - this.label, OVERVIEW - 4);
    c.fillRect(right, 2, this.width - right, OVERVIEW - 4);
    c.globalAlpha = 1;
    c.strokeStyle = this.accent;
    c.lineWidth = 1;
    c.strokeRect(left + 0.5, 2.5, Math.max(2, right - left - 1), OVERVIEW - 5);
    c.fillStyle = this.soft;
    c.fillText("whole trace", 12, OVERVIEW / 2);
  }

  // The block under a point of the canvas, or -1.
  find(x, y) {
    const { timeline: t } = this.data, ns = this.ns(x), near = ((this.to - this.from) / (this.width - this.label)) * 3;
    const row = this.rows.find((one) => one.kind === "lane" && y >= OVERVIEW + RULER + one.y - this.top && y < OVERVIEW + RULER + one.y - this.top + LANE);
    if (!row || x < this.label || y < OVERVIEW + RULER) return -1;
    const at = lowerBound(t.start, ns, row.first, row.last);
    for (const i of [at - 1, at]) if (i >= row.first && i < row.last && t.start[i] <= ns + near && t.start[i] + t.duration[i] >= ns - near) return i;
    return -1;
  }
}

function density(timeline, bins, end) {
  const found = new Float64Array(bins), size = end / bins;
  for (let i = 0; i < timeline.start.length; i++) {
    const start = timeline.start[i], stop = start + timeline.duration[i];
    for (let bin = Math.floor(start / size); bin < bins && bin * size < stop; bin++)
      found[bin] += (Math.min(stop, (bin + 1) * size) - Math.max(start, bin * size)) / size;
  }
  const most = Math.max(...found, 1e-9);
  return found.map((value) => value / most);
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least);
}

function tick(ns, step) {
  const [unit, size] = UNITS.find(([, one]) => ns >= one) ?? UNITS[3];
  return `${+(ns / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)))} ${unit}`;
}

function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return `${text.slice(0, length)}…`;
}
