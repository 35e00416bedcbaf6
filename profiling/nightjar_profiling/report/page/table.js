// A table of any length: it draws only visible rows; search and sort work on indices.

const ROW = 30;

class Table {
  // columns: [{name, kind, values, width?, render?}]; open(row) is called when a row is chosen.
  constructor({ columns, search, label, open, sort, selected, hide }) {
    this.hide = hide; // of a row that only a search shows
    this.columns = columns.map((column) => ({ ...column, ...formatter(column) }));
    this.length = columns[0].values.length;
    this.open = open;
    this.query = "";
    this.sortBy = sort ?? Math.max(0, columns.findIndex((column) => !["text", "line", "index"].includes(column.kind)));
    this.down = true;
    this.selected = selected ?? -1; // index of a row, not its position
    this.texts = search;
    this.build(label);
    this.sortRows();
  }

  build(label) {
    const widths = this.columns.map((column) => column.width).join(" ");
    this.grid = `grid-template-columns: ${widths}`;
    this.least = `--least: ${this.columns.reduce((sum, column) => sum + column.least, 12)}px`;
    this.titles = element("div", { class: "row titles", role: "row", style: this.grid });
    this.columns.forEach((column, number) => {
      const button = element("button", { type: "button", text: column.title });
      button.addEventListener("click", () => {
        this.down = this.sortBy === number ? !this.down : column.kind !== "text";
        this.sortBy = number;
        this.sortRows();
      });
      this.titles.append(element("div", { class: `cell ${column.number || column.kind === "index" ? "number" : ""}`, role: "columnheader" }, button));
    });
    this.body = element("div", { class: "body", role: "rowgroup", style: "position: relative" });
    this.scroll = element("div", { class: "scroll", role: "table", tabindex: "0", "aria-label": label, style: this.least }, this.titles, this.body);
    this.scroll.addEventListener("scroll", () => this.draw());
    this.scroll.addEventListener("keydown", (event) => this.key(event));
    this.root = element("div", { class: "table panel" }, this.scroll);
    new ResizeObserver(() => this.draw()).observe(this.scroll);
  }

  searchBox(placeholder) {
    const box = element("input", { type: "search", placeholder, "aria-label": placeholder });
    this.status = element("span", { class: "status", "aria-live": "polite" });
    box.addEventListener("input", () => { this.query = box.value.trim().toLowerCase(); this.sortRows(); });
    this.showCount();
    return [box, this.status];
  }

  showCount() {
    if (this.status) this.status.textContent = this.query ? `${count(this.rows.length)} of ${count(this.length)}` : `${count(this.rows.length)} rows`;
  }

  sortRows() {
    const values = this.columns[this.sortBy].values, sign = this.down ? -1 : 1;
    const rows = [];
    for (let i = 0; i < this.length; i++) if (this.query ? this.text(i).includes(this.query) : !this.hide?.(i)) rows.push(i);
    rows.sort((a, b) => sign * compare(values[a], values[b]) || a - b);
    this.rows = rows;
    [...this.titles.children].forEach((cell, number) =>
      cell.setAttribute("aria-sort", number !== this.sortBy ? "none" : this.down ? "descending" : "ascending"));
    this.body.style.height = `${Math.max(rows.length, 1) * ROW}px`;
    this.scroll.setAttribute("aria-rowcount", rows.length);
    this.showCount();
    this.draw();
  }

  text(row) {
    return (this.texts ? this.texts(row) : this.columns.filter((column) => !column.number).map((column) => column.values[row]).join(" ")).toLowerCase();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - 6);
    const last = Math.min(this.rows.length, first + Math.ceil((this.scroll.clientHeight || 600) / ROW) + 12);
    const made = [];
    for (let position = first; position < last; position++) {
      const row = this.rows[position];
      const line = element("div", {
        class: `row ${this.open ? "link" : ""}`, role: "row", "aria-rowindex": position + 1, "data-row": row,
        "aria-selected": String(row === this.selected), style: `${this.grid}; top: ${position * ROW}px`,
      });
      for (const column of this.columns) {
        const cell = element("div", { class: `cell ${column.number || column.kind === "index" ? "number" : ""}`, role: "cell" });
        column.show(cell, column.values[row], row, this.query);
        line.append(cell);
      }
      if (this.open) line.addEventListener("click", () => this.choose(row));
      made.push(line);
    }
    if (!this.rows.length) made.push(element("p", { class: "empty", style: "margin: 0", text: this.query ? "No matches." : "No rows." }));
    this.body.replaceChildren(...made);
  }

  choose(row) {
    this.selected = row;
    this.draw();
    this.open?.(row);
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined || !this.open || !this.rows.length || event.target !== this.scroll) return;
    event.preventDefault();
    const position = Math.min(this.rows.length - 1, Math.max(0, this.rows.indexOf(this.selected) + step));
    const top = position * ROW, view = this.scroll;
    if (top < view.scrollTop) view.scrollTop = top;
    if (top + 2 * ROW + 4 > view.scrollTop + view.clientHeight) view.scrollTop = top + 2 * ROW + 4 - view.clientHeight;
    this.choose(this.rows[position]);
  }
}

function compare(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}

// Title, width and formatting of a column, by its kind.
function formatter(column) {
  const plain = (text) => (cell, value) => { cell.textContent = value === null || value === undefined || (column.blank && !value) ? "" : text(value); };
  const title = column.title ?? column.name;
  const room = (text, least) => Math.max(least, 34 + 7 * text.length); // px, for the title
  const number = { number: true, title, width: column.width ?? `${room(title, 80)}px`, least: room(title, 80) };
  switch (column.kind) {
    case "ns": {
      const [unit, factor] = column.unit ?? columnUnit(column.values);
      const digits = unit === "ns" ? 0 : 3;
      const least = room(title + unit, 104);
      return { ...number, title: `${title} (${unit})`, width: column.width ?? `${least}px`, least, show: plain((value) => (value / factor).toFixed(digits)) };
    }
    case "index": return { ...number, number: false, width: "72px", least: 72, show: plain(String) };
    case "int": return { ...number, show: plain(count) };
    case "rate": return { ...number, width: "minmax(110px, 140px)", least: 110, show: plain((value) => value.toFixed(2)) };
    case "bytes": return { ...number, show: plain(size) };
    case "fraction": {
      let largest = 0;
      for (const value of column.values) largest = Math.max(largest, value);
      return { number: false, title, width: column.width ?? "minmax(150px, 200px)", least: 150, show: (cell, value) => {
        cell.classList.add("share");
        if (value === null || (column.blank && !value)) return;
        cell.append(element("span", { text: percent(value) }), element("i", { style: `width: ${(60 * value) / (largest || 1)}px` }));
      } };
    }
    default: return { number: false, title, width: column.width ?? "minmax(160px, 1fr)", least: column.least ?? 160, show: column.show ?? ((cell, value, row, query) => {
      cell.title = value;
      cell.classList.add("mono");
      cell.append(...marked(String(value), query));
    }) };
  }
}
