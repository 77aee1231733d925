// Elements are made here, and every string that comes from a program goes through `textContent`: none becomes markup.

function el(tag, attrs, ...children) {
  const made = document.createElement(tag);
  fill(made, attrs, children);
  return made;
}

function svg(tag, attrs, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attrs || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return made;
}

function fill(made, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) made.append(child);
  }
}

// Characters that turn the direction of text, or cannot be seen, are shown as what they are.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]/gu;
const shown = (text) => String(text).replace(UNSEEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

const count = (n, word) => n.toLocaleString("en") + " " + word + (n === 1 ? "" : "s");
const plain = (x) => (Math.abs(x) >= 100 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(3))));

function bytes(n) {
  if (typeof n !== "number") return n === null || n === undefined ? "" : shown(n) + " bytes";
  for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"]]) if (Math.abs(n) >= unit) return plain(n / unit) + " " + name;
  return plain(n) + " B";
}

function seconds(s) {
  if (s >= 1) return plain(s) + " s";
  if (s >= 1e-3) return plain(s * 1e3) + " ms";
  return plain(s * 1e6) + " µs";
}

function rate(x, unit) {
  for (const [size, name] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (x >= size) return plain(x / size) + " " + name + unit;
  return plain(x) + " " + unit;
}

const percent = (x) => Math.round(100 * x) + " %";
const bar = (part, kind) => el("span", { class: "bars " + (kind || "") }, el("i", { style: { width: Math.min(100, 100 * part) + "%" } }));

// A table whose rows can be walked with the keyboard; each row is {cells, places, open}.
function table(heads, rows) {
  const body = el("tbody");
  for (const row of rows) {
    const made = el("tr", { tabindex: row.places || row.open ? 0 : null }, row.cells.map((cell, k) => el("td", { class: heads[k][1] || null }, cell)));
    if (row.places) lightable(made, row.places);
    if (row.open) {
      made.addEventListener("click", row.open);
      made.addEventListener("keydown", (e) => { if (e.key === "Enter") row.open(); });
    }
    body.append(made);
  }
  body.addEventListener("keydown", (e) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[e.key];
    const next = step && e.target.closest("tr")[step];
    if (next) { next.focus(); e.preventDefault(); }
  });
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map(([name, kind]) => el("th", { class: kind || null, scope: "col" }, name)))), body);
}

// A table that shows its first rows, and more when asked.
function longTable(heads, rows, first = 120) {
  const made = el("div", {}, table(heads, rows.slice(0, first)));
  if (rows.length > first) {
    const more = el("button", { type: "button", style: { marginTop: "8px" } }, "Show " + (rows.length - first).toLocaleString("en") + " more");
    more.addEventListener("click", () => made.replaceChildren(table(heads, rows)));
    made.append(more);
  }
  return made;
}

// Call when an element has another size, outside of the observer, which may not change sizes itself.
function resized(made, told) {
  let waiting = 0;
  new ResizeObserver(() => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(told); }).observe(made);
}

// A list of any length: only rows in sight are elements. `row(i, el)` fills the element of one.
class List {
  constructor({ label, row, places, choose, widest, seen }) {
    this.fillRow = row; this.seen = seen || (() => {}); this.placesOf = places || (() => null); this.choose = choose;
    this.space = el("div", { class: "space" });
    this.host = el("div", { class: widest ? "list" : "list fit", tabindex: 0, role: "listbox", "aria-label": label }, this.space);
    this.marks = el("canvas", { class: "marks", "aria-hidden": "true" });
    this.element = el("div", { class: "body" }, this.host, this.marks);
    this.rows = new Map(); this.count = 0; this.active = -1; this.widest = widest || 0; this.id = "list" + List.made++;
    this.host.addEventListener("scroll", () => this.draw(), { passive: true });
    this.host.addEventListener("keydown", (e) => this.key(e));
    this.host.addEventListener("pointermove", (e) => { if (e.pointerType !== "touch") this.over(this.rowAt(e)); });
    this.host.addEventListener("pointerleave", () => Light.hover(null));
    this.host.addEventListener("click", (e) => { const i = this.rowAt(e); if (i >= 0) { this.active = i; this.pick(i); } });
    this.marks.addEventListener("click", (e) => this.show(Math.floor(this.count * e.offsetY / this.marks.clientHeight)));
    resized(this.host, () => { this.draw(); this.mark(); });
    Light.watch(this);
  }

  rowAt(e) { const found = e.target.closest && e.target.closest(".row"); return found ? Number(found.dataset.i) : -1; }

  set(count, widest) {
    this.count = count; this.widest = widest || this.widest; this.active = -1;
    for (const row of this.rows.values()) row.remove();
    this.rows.clear(); this.height = 0; this.draw(); this.mark();
  }

  size() { return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 22; }

  draw() {
    const height = this.size();
    if (height !== this.height) {
      this.height = height;
      this.space.style.height = this.count * height + "px";
      this.space.style.minWidth = this.widest ? "calc(" + (this.widest + 8) + "ch)" : "";
      for (const row of this.rows.values()) row.remove();
      this.rows.clear();
    }
    const from = Math.max(0, Math.floor(this.host.scrollTop / height) - 6);
    this.seen(Math.min(this.count - 1, Math.ceil(this.host.scrollTop / height))); // the first row that is seen whole
    const to = Math.min(this.count, Math.ceil((this.host.scrollTop + this.host.clientHeight) / height) + 6);
    for (const [i, row] of this.rows) if (i < from || i >= to) { row.remove(); this.rows.delete(i); }
    for (let i = from; i < to; i++) {
      if (this.rows.has(i)) continue;
      const row = el("div", { class: "row can", role: "option", id: this.id + "-" + i, style: { top: i * height + "px" } });
      row.dataset.i = i;
      this.fillRow(i, row);
      this.rows.set(i, row);
      this.space.append(row);
      this.paint(i, row);
    }
  }

  paint(i, row) {
    const how = Light.of(this.placesOf(i));
    row.classList.toggle("lit", how === 2); row.classList.toggle("near", how === 1);
    row.classList.toggle("pinned", Light.isPinned(this, i)); row.classList.toggle("active", i === this.active);
    if (how) row.setAttribute("aria-selected", "true"); else row.removeAttribute("aria-selected");
  }

  relight() { for (const [i, row] of this.rows) this.paint(i, row); this.mark(); }

  mark() {
    const ratio = window.devicePixelRatio || 1, height = this.marks.clientHeight, width = this.marks.clientWidth;
    if (!height) return;
    this.marks.width = width * ratio; this.marks.height = height * ratio;
    if (!Light.any()) return;
    const context = this.marks.getContext("2d"), style = getComputedStyle(document.documentElement);
    const colour = [null, style.getPropertyValue("--near"), style.getPropertyValue("--pin")];
    context.scale(ratio, ratio);
    for (const wanted of [1, 2]) for (let i = 0; i < this.count; i++) {
      if (Light.of(this.placesOf(i)) !== wanted) continue;
      context.fillStyle = colour[wanted];
      context.fillRect(1, height * i / this.count, width - 1, Math.max(2, height / this.count));
    }
  }

  over(i) { Light.hover(i < 0 ? null : this.placesOf(i)); }
  pick(i) { if (this.choose) this.choose(i); else Light.pin(this, i, this.placesOf(i)); this.relight(); }

  key(e) {
    const page = Math.max(1, Math.floor(this.host.clientHeight / this.height) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count, j: 1, k: -1 }[e.key];
    if (e.key === "Enter" || e.key === " ") { if (this.active >= 0) this.pick(this.active); e.preventDefault(); return; }
    if (step === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    this.active = Math.max(0, Math.min(this.count - 1, this.active < 0 ? Math.round(this.host.scrollTop / this.height) : this.active + step));
    this.show(this.active, true);
    this.over(this.active);
    this.host.setAttribute("aria-activedescendant", this.id + "-" + this.active);
    this.relight();
  }

  show(i, nearest) {
    if (i < 0 || i >= this.count) return;
    if (!this.height) this.draw();
    const top = i * this.height, view = this.host.clientHeight;
    if (nearest && top >= this.host.scrollTop && top + this.height <= this.host.scrollTop + view) return;
    this.host.scrollTop = Math.max(0, top - (nearest ? view / 2 : view / 3));
    this.draw();
  }

  showFirstLit() {
    let first = -1;
    for (let i = 0; i < this.count; i++) {
      const how = Light.of(this.placesOf(i));
      if (how === 2) { first = i; break; }
      if (how === 1 && first < 0) first = i;
    }
    if (first >= 0) this.keepInView(first);
  }

  keepInView(i) {
    const top = i * this.height;
    if (top < this.host.scrollTop || top + this.height > this.host.scrollTop + this.host.clientHeight) this.show(i);
  }
}
List.made = 0;

const KEYWORDS = /^(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|self|try|while|with|yield|None|True|False|const|int|float|void|int64_t|auto|return|extern|static|inline|struct|template|typename|tl)$/;
const PYTHON = /(#.*$|\/\/.*$)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(\d[\w.]*)|([A-Za-z_]\w*)/g;
const IR = /("(?:[^"\\]|\\.)*")|(%\w+)|(@[\w.]+)|(![\w.]+)|\b([a-z_]+\.[\w.]+)|(-?\b\d[\w.]*)/g;

// A line of code in colours: text nodes and spans.
function coloured(text, kind) {
  const out = [], pattern = kind === "ir" ? IR : PYTHON;
  if (text.length > 600) return [shown(text)];
  let end = 0;
  for (const found of text.matchAll(pattern)) {
    let name = "";
    if (kind === "ir") name = ["", "k-str", "k-val", "k-fn", "k-kw", "k-fn", "k-num"][found.findIndex((g, k) => k && g !== undefined)];
    else if (found[1]) name = "k-com";
    else if (found[2]) name = "k-str";
    else if (found[3]) name = "k-num";
    else if (KEYWORDS.test(found[4])) name = "k-kw";
    if (!name) continue;
    if (found.index > end) out.push(shown(text.slice(end, found.index)));
    out.push(el("span", { class: name }, shown(found[0])));
    end = found.index + found[0].length;
  }
  out.push(shown(text.slice(end)));
  return out;
}
