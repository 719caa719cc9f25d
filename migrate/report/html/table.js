// A table of many rows: only those that can be seen are in the page. Sorts by any column, filters by words.

const ROW_HEIGHT = 26;
const SPARE_ROWS = 8;
const PRINTED_ROWS = 300;
const MOST_CHARACTERS = 64;

class VirtualTable {
  // columns: {title, number, text(row), value(row)}; rows: anything; choose(row) is called for the chosen one.
  constructor(box, columns, rows, { searched, choose, counted }) {
    Object.assign(this, { box, columns, rows, choose, counted });
    this.haystack = rows.map((row) => searched(row).toLowerCase());
    this.visible = rows.map((_, index) => index);
    this.sorted = { column: null, descending: false };
    this.words = "";
    this.keep = () => true;
    this.chosen = -1;
    this.#build();
    this.refresh();
  }

  #build() {
    this.table = html("table", { class: "virtual", "aria-rowcount": this.rows.length + 1 });
    const widths = html("colgroup");
    const heading = html("tr");
    let total = 0;
    this.columns.forEach((column, index) => {
      const longest = this.rows.reduce((most, row) => Math.max(most, column.text(row).length), column.title.length + 3);
      const width = Math.min(longest, MOST_CHARACTERS) + 2;
      total += width;
      const col = html("col");
      col.style.width = `${width}ch`;
      widths.append(col);
      const button = html("button", { type: "button" }, column.title);
      button.addEventListener("click", () => this.sort(index));
      heading.append(html("th", { scope: "col", class: column.number ? "number" : "" }, button));
    });
    this.table.style.width = `max(100%, ${total}ch)`;
    this.body = html("tbody");
    this.table.append(widths, html("thead", {}, heading), this.body);
    this.box.replaceChildren(this.table);
    this.box.addEventListener("scroll", () => this.#schedule(), { passive: true });
    this.box.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#schedule()).observe(this.box);
    window.addEventListener("beforeprint", () => this.draw(true));
    window.addEventListener("afterprint", () => this.draw());
  }

  sort(index) {
    const same = this.sorted.column === index;
    // numbers are looked at for the largest; a third click gives the program's own order back
    const first = Boolean(this.columns[index].number);
    if (!same) this.sorted = { column: index, descending: first };
    else if (this.sorted.descending === first) this.sorted = { column: index, descending: !first };
    else this.sorted = { column: null, descending: false };
    this.refresh();
  }

  filter(words, keep) {
    this.words = words;
    this.keep = keep;
    this.refresh();
  }

  refresh() {
    const words = this.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (let index = 0; index < this.rows.length; index += 1) {
      if (words.every((word) => this.haystack[index].includes(word)) && this.keep(this.rows[index])) found.push(index);
    }
    const { column, descending } = this.sorted;
    if (column !== null) {
      const ranks = this.#ranks(this.columns[column]);
      const sign = descending ? -1 : 1;
      found.sort((a, b) => sign * (ranks[a] - ranks[b]) || a - b);
    }
    this.visible = found;
    this.table.querySelectorAll("thead th").forEach((cell, index) => {
      const order = index !== column ? "none" : descending ? "descending" : "ascending";
      cell.setAttribute("aria-sort", order);
    });
    this.counted(found.length, this.rows.length);
    this.box.scrollTop = 0;
    this.draw();
  }

  // Texts are compared once for each column, by distinct text: 20,000 rows have few layouts.
  #ranks(column) {
    if (column.ranks) return column.ranks;
    const values = this.rows.map((row) => (column.value ?? column.text)(row));
    if (!column.number) {
      const collator = new Intl.Collator("en", { numeric: true });
      const order = new Map([...new Set(values)].sort(collator.compare).map((text, rank) => [text, rank]));
      column.ranks = values.map((text) => order.get(text));
    } else {
      column.ranks = values;
    }
    return column.ranks;
  }

  #schedule() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw(printing = false) {
    const count = this.visible.length;
    const height = this.box.clientHeight || 600;
    let from = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    let to = Math.min(count, from + Math.ceil(height / ROW_HEIGHT) + 2 * SPARE_ROWS);
    if (printing) [from, to] = [0, Math.min(count, PRINTED_ROWS)];
    const rows = [];
    if (from > 0) rows.push(this.#space(from));
    for (let at = from; at < to; at += 1) rows.push(this.#row(this.visible[at], at));
    if (to < count) rows.push(printing ? this.#rest(count - to) : this.#space(count - to));
    this.body.replaceChildren(...rows);
  }

  #space(rows) {
    const row = html("tr", { class: "space", "aria-hidden": "true" }, html("td", { colspan: this.columns.length }));
    row.firstChild.style.height = `${rows * ROW_HEIGHT}px`;
    return row;
  }

  #rest(count) {
    return html("tr", {}, html("td", { colspan: this.columns.length }, `and ${grouped(count)} more`));
  }

  #row(index, at) {
    const row = html("tr", { "aria-rowindex": at + 2 });
    if (index === this.chosen) row.classList.add("chosen");
    for (const column of this.columns) {
      const text = column.text(this.rows[index]);
      const cell = html("td", { class: [column.number ? "number" : "", column.mono ? "mono" : ""].join(" ").trim() }, text);
      if (text.length > MOST_CHARACTERS) cell.title = text;
      const tone = column.tone && column.tone(this.rows[index]);
      if (tone) cell.classList.add(tone);
      row.append(cell);
    }
    row.addEventListener("click", () => this.select(index));
    return row;
  }

  select(index) {
    this.chosen = index;
    this.draw();
    this.choose(this.rows[index]);
  }

  #key(event) {
    const page = Math.floor(this.box.clientHeight / ROW_HEIGHT) - 1;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || event.target !== this.box || !this.visible.length) return;
    event.preventDefault();
    const now = this.visible.indexOf(this.chosen);
    const at = Math.max(0, Math.min(this.visible.length - 1, now < 0 ? (step === Infinity ? step : 0) : now + step));
    const top = at * ROW_HEIGHT;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    const bottom = top + 2 * ROW_HEIGHT - this.box.clientHeight + ROW_HEIGHT;
    if (bottom > this.box.scrollTop) this.box.scrollTop = bottom;
    this.select(this.visible[at]);
  }
}
