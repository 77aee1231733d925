// The facts, unpacked, and what belongs to what: a graph's operations, the steps of its program and the user's lines meet in places.

async function unpack(id) {
  const raw = atob(document.getElementById(id).textContent.trim());
  const packed = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const Data = {
  facts: null, texts: null, graph: 0, program: 0, lines: null,

  async open() {
    this.facts = await unpack("facts");
    this.views = [];
    this.facts.graphs.forEach((graph, g) => {
      if (!graph.programs.length) this.views.push({ graph: g, program: -1 });
      graph.programs.forEach((_, p) => this.views.push({ graph: g, program: p }));
    });
  },

  async long() { return (this.texts = this.texts || await unpack("texts")); },
  async text(number) { return (await this.long())[number].text; },

  async located(number) {
    const found = (await this.long())[number];
    if (!found.at) {
      let last = 0;
      found.lines = found.text.split("\n");
      found.at = (found.places || found.lines.map(() => -1)).map((d) => (last += d));
    }
    return found;
  },

  nowGraph() { return this.facts.graphs[this.graph] || null; },
  nowProgram() { const graph = this.nowGraph(); return graph && graph.programs[this.program] || null; },

  choose(view) {
    this.graph = view.graph; this.program = view.program;
    const below = (this.below = new Map()); // of a place where a call stands: the places that it led to
    const graph = this.nowGraph();
    for (const op of graph ? graph.ops : []) {
      for (const place of this.facts.stacks[op.stack] || []) {
        if (!below.has(place)) below.set(place, new Set());
        if (op.place !== null) below.get(place).add(op.place);
      }
    }
  },

  file(place) { return this.facts.files[this.facts.places[place][0]]; },
  line(place) { return this.facts.places[place][1]; },
  where(place) { const name = shown(this.file(place).name); return (name.length > 46 ? "…/" + name.split("/").slice(-2).join("/") : name) + ":" + this.line(place); },
  brief(place) { return shown(this.file(place).name.split("/").pop()) + ":" + this.line(place); },

  source(place) {
    const line = this.line(place);
    for (const [first, lines] of this.file(place).parts) if (line >= first && line < first + lines.length) return lines[line - first];
    return "";
  },
};

// What is lit: by the mouse or the keyboard for a moment, or pinned until something else is.
const Light = {
  lists: [], others: [], now: null, kept: null, owner: null, index: -1,

  watch(list) { this.lists.push(list); },
  any() { return Boolean(this.now || this.kept); },
  lit() { return this.now || this.kept; },

  // 2: the same line (and the same module, where both have one); 1: the same line of another module; 0: neither.
  of(group) {
    const lit = this.lit();
    if (!lit || !group) return 0;
    let same = false;
    for (const place of group.places) if (lit.set.has(place)) { same = true; break; }
    if (!same) return 0;
    const a = lit.module, b = group.module;
    return !a || !b || a === b || a.startsWith(b + ".") || b.startsWith(a + ".") ? 2 : 1;
  },

  group(found) { return found && { ...found, set: new Set(found.lights || found.places) }; },
  hover(found) {
    if (found === null && this.now === null) return;
    this.now = found && found.places.length ? this.group(found) : null;
    this.refresh();
  },
  pin(owner, index, found) {
    const again = this.owner === owner && this.index === index;
    this.kept = again || !found || !found.places.length ? null : this.group(found);
    this.owner = again ? null : owner; this.index = again ? -1 : index; this.now = null;
    this.refresh();
    for (const told of this.others) told(this.kept); // the lists are as high as they stay once it is told
    if (this.kept) for (const list of this.lists) if (list.host.isConnected) list === owner ? list.keepInView(index) : list.showFirstLit();
  },
  isPinned(owner, index) { return this.kept !== null && this.owner === owner && this.index === index; },
  clear() { this.kept = this.now = this.owner = null; this.index = -1; this.refresh(); for (const told of this.others) told(null); },

  refresh() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.lists = this.lists.filter((list) => list.host.isConnected);
      for (const list of this.lists) list.relight();
      for (const made of document.querySelectorAll("[data-places]")) {
        made.classList.toggle("lit", this.of({ places: JSON.parse(made.dataset.places) }) === 2);
      }
      tellStatus(this.lit());
    });
  },
};

function lightable(made, places) {
  made.dataset.places = JSON.stringify(places);
  made.addEventListener("pointerenter", (e) => { if (e.pointerType !== "touch") Light.hover({ places }); });
  made.addEventListener("pointerleave", () => Light.hover(null));
  made.addEventListener("focus", () => Light.hover({ places }));
  made.addEventListener("blur", () => Light.hover(null));
}

function tellStatus(lit) {
  const bar = document.getElementById("status");
  if (!lit || !lit.places.length) { bar.replaceChildren(matchMedia("(hover: none), (max-width: 599px)").matches ? "Tap something to see its line and light up what belongs to it." : "Point at something to see its line; click or press Enter to keep it lit; Esc lets go; ? lists the keys."); return; }
  const place = lit.places[0], more = lit.places.length - 1;
  bar.replaceChildren(
    el("span", { class: "where mono" }, Data.where(place)), el("code", {}, coloured(Data.source(place).trim())),
    more > 0 ? el("span", {}, "and " + count(more, "line")) : "", lit.module ? el("span", { class: "hide-small" }, "module " + shown(lit.module)) : "");
}

// A button that says a line, and goes to it.
function lineButton(place) {
  return el("button", { class: "line", type: "button", title: shown(Data.file(place).path) + ":" + Data.line(place), onclick: (e) => { e.stopPropagation(); Page.showLine(place); } }, Data.brief(place));
}

const lineButtons = (places, most = 4) => el("span", { class: "lines" }, places.slice(0, most).map(lineButton), places.length > most ? el("span", { class: "more" }, "+" + (places.length - most)) : "");
