// The hot lines: a table of Python lines, and the source with the time of every line.

const SOURCE_ROW = 20;

function linesView(data, app) {
  const places = [...data.places.values()].sort((a, b) => b.self - a.self || b.total - a.total);
  const total = data.total_ns || 1;
  const source = new SourceView(data);
  const wide = innerWidth > 700, beside = wide && data.stacks.busy_ns;
  const busyNote = " Ops ran side by side here, and in self each counts whole. Busy: the line's share where every moment is divided among the ops that ran then, as on a clock.";
  const selves = places.map((place) => place.self), unit = columnUnit(selves);
  const onlyCalls = (row) => !places[row].self && !places[row].merged.size && !places[row].keptAt.size;
  const folded = places.filter((_, row) => onlyCalls(row)).length;
  const table = new Table({
    label: "Hot lines", hide: folded < places.length ? onlyCalls : null,
    columns: [
      { name: "self", kind: "ns", values: selves, unit, blank: true },
      { name: "share", kind: "fraction", values: selves.map((ns) => ns / total), width: "136px", blank: true },
      { name: "busy", kind: "fraction", values: places.map((place) => place.busy / data.busy_ns), width: "118px", blank: true },
      { name: "with calls", kind: "ns", values: places.map((place) => place.total), unit },
      { name: "line", kind: "text", values: places.map((place) => `${baseName(place.file)}:${place.line}`), width: "minmax(160px, 1fr)", least: 160,
        show: (cell, value, row, query) => {
          cell.title = `${places[row].file}:${places[row].line} ${places[row].function}`;
          cell.append(element("span", { class: "mono" }, ...marked(value, query)), element("small", {}, ...marked(places[row].function.replaceAll(".<locals>", ""), query)));
          if (places[row].merged.size || places[row].keptAt.size) cell.append(element("small", { class: "merged", text: places[row].self ? "merged" : "computed elsewhere" }));
        } },
    ].filter(({ name }) => (name !== "share" || wide) && (name !== "busy" || beside)),
    search: (row) => `${places[row].file}:${places[row].line} ${places[row].function} ${source.text(places[row])}`,
    open: (row) => { source.show(places[row]); app.remember(`lines/${places[row].key}`); },
  });
  const unfold = () => { table.hide = null; table.sortRows(); more.remove(); };
  const more = element("button", { type: "button", class: "jump", text: `and ${count(folded)} that only call`, onclick: unfold });
  app.showLine = (key) => {
    const row = places.findIndex((place) => place.key === key);
    if (row < 0) return;
    table.selected = row;
    if (!table.rows.includes(row)) unfold();
    table.scroll.scrollTop = Math.max(0, table.rows.indexOf(row) * ROW - 90);
    table.draw();
    source.show(places[row]);
  };
  if (places.length) { table.selected = 0; table.draw(); source.show(places[0]); }
  return element("div", { class: "view" },
    element("p", { class: "note", text: `Self: device time of stacks whose innermost line of your code is this one. With calls: all device time with the line anywhere on its stack.${beside ? busyNote : ""} Click a line to see its source.` }),
    element("div", { class: "bar" }, ...table.searchBox("Search lines, functions, source"), ...(folded && table.hide ? [more] : []), element("span", { class: "grow" }), app.fusionChoice()),
    element("div", { class: "lines" }, table.root, source.root));
}

class SourceView {
  constructor(data) {
    this.data = data;
    this.lines = new Map();
    this.now = element("span", { class: "now" });
    this.name = element("b");
    this.path = element("span");
    this.names = element("div", { class: "line names" }, ...["self", "with calls", "line"].map((text, n) => element("span", { class: n < 2 ? "ns" : "no", text })));
    this.rows = element("div", { style: "position: relative" });
    this.scroll = element("div", { class: "text", tabindex: "0", role: "region", "aria-label": "Source" }, this.rows);
    this.stacks = element("div", { class: "stacks" });
    this.root = element("section", { class: "source panel", "aria-label": "Source with time by line" },
      element("div", { class: "title" }, this.name, this.path, this.now), this.names, this.scroll, this.stacks);
    this.scroll.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => { if (this.aim) this.center(); this.draw(); }).observe(this.scroll);
  }

  // Scrolls to the line, as soon as the view has a size.
  center() {
    const height = this.scroll.clientHeight;
    this.aim = height < 2 * SOURCE_ROW;
    if (!this.aim) this.scroll.scrollTop = Math.max(0, (this.place.line - 1) * SOURCE_ROW - height / 5);
  }

  linesOf(file) {
    if (!this.lines.has(file)) {
      const text = Object.hasOwn(this.data.sources, file) ? this.data.sources[file] : null;
      this.lines.set(file, text === null ? null : text.split("\n"));
    }
    return this.lines.get(file);
  }

  text(place) { return this.linesOf(place.file)?.[place.line - 1] ?? ""; }

  show(place) {
    const changed = this.place?.file !== place.file;
    this.place = place;
    this.file = this.linesOf(place.file);
    this.name.textContent = `${baseName(place.file)}:${place.line}`;
    this.path.replaceChildren(element("bdi", { text: place.file.replace(/\/?[^/]*$/, "") }));
    this.path.title = place.file;
    this.now.textContent = `${duration(place.self)} self · ${duration(place.total)} with calls`;
    this.now.dataset.selfNs = place.self;
    this.now.dataset.totalNs = place.total;
    const times = new Map();
    for (const other of this.data.places.values()) if (other.file === place.file) times.set(other.line, other);
    this.times = times;
    this.most = Math.max(1, ...[...times.values()].map((time) => time.self || 0));
    const widest = this.file ? Math.max(...this.file.map((line) => line.length)) : 40;
    this.rows.style.minWidth = `calc(216px + ${Math.min(widest, 400)}ch)`;
    this.rows.style.height = `${(this.file ? this.file.length : 2) * SOURCE_ROW}px`;
    const top = (place.line - 1) * SOURCE_ROW, view = this.scroll;
    if (changed || top < view.scrollTop || top > view.scrollTop + view.clientHeight - 3 * SOURCE_ROW)
      this.center();
    this.draw();
    this.showStacks();
  }

  draw() {
    if (!this.place) return;
    if (!this.file) {
      this.rows.replaceChildren(element("p", { class: "empty", text: "The capture does not contain the source of this file." }));
      this.rows.style.height = "auto";
      return;
    }
    const times = [...this.times.values()];
    const [unit, factor] = columnUnit(times.some((place) => place.self) ? times.map((place) => place.self) : times.map((place) => place.total));
    [...this.names.children].slice(0, 2).forEach((cell, n) => { cell.textContent = `${n ? "calls" : "self"} (${unit})`; });
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / SOURCE_ROW) - 5);
    const last = Math.min(this.file.length, first + Math.ceil((this.scroll.clientHeight || 600) / SOURCE_ROW) + 10);
    const made = [];
    for (let n = first; n < last; n++) {
      const time = this.times.get(n + 1);
      const heat = time?.self ? `; background: rgba(var(--heat), ${(0.06 + 0.4 * Math.sqrt(time.self / this.most)).toFixed(3)})` : "";
      const elsewhere = time && !time.self ? [...time.keptAt.keys()].find((place) => place !== time) : undefined;
      made.push(element("div", { class: `line ${n + 1 === this.place.line ? "here" : ""}`, "data-line": n + 1, style: `top: ${n * SOURCE_ROW}px${heat}` },
        element("span", { class: "ns self", text: time?.self ? format(time.self / factor) : elsewhere ? `at ${elsewhere.line}` : "" }),
        element("span", { class: "ns total", text: time ? format(time.total / factor) : "" }),
        element("span", { class: "no", text: n + 1 }),
        element("span", { text: this.file[n] || " " })));
    }
    this.rows.replaceChildren(...made);
  }

  // The instructions whose time belongs to the line, largest first.
  showStacks() {
    const { instructions } = this.data;
    const frames = new Set(this.place.stacks.map(([frame]) => frame));
    const indices = [];
    for (let i = 0; i < instructions.name.length && indices.length < 200; i++) if (frames.has(instructions.frame[i])) indices.push(i);
    const rows = indices.slice(0, 40).map((i) => element("div", {},
      element("span", { class: "ns", text: duration(instructions.total_ns[i]) }),
      element("code", { text: `${instructions.name[i]}   ${instructions.op_name[i]}`, title: instructions.op_name[i] })));
    this.stacks.replaceChildren(...mergedNotes(this.place), element("b", { text: indices.length ? "Instructions" : "No instruction has this user line" }), ...rows);
  }
}

// What XLA computes once though several lines, or one line several times, say it.
function mergedNotes(place) {
  const name = (other) => (other === place ? "this line itself" : `${baseName(other.file)}:${other.line}`);
  const list = (others) => [...others].map(([other, n]) => `${name(other)} (${n === 1 ? "1 operation" : `${count(n)} operations`})`).join(", ");
  const notes = [];
  if (place.merged.size) notes.push(`Its time also stands for equal operations of ${list(place.merged)}: XLA computes them once.`);
  const elsewhere = new Map([...place.keptAt].filter(([other]) => other !== place));
  if (elsewhere.size) notes.push(`XLA computes operations of this line at ${list(elsewhere)}, where they are the same.`);
  return notes.map((text) => element("p", { class: "merged", text }));
}

const format = (value) => (value >= 0.0005 ? value.toFixed(3) : "<.001");
