// The user's source beside the graph and the program: what is pointed at in one lights up in the others.

function codePart() {
  const graph = Data.nowGraph(), program = Data.nowProgram();
  const ops = graph ? graph.ops : [], steps = program && program.steps || [], units = program && program.units || [];
  const times = new Map((program && program.times ? program.times.steps : []).map((s) => [s.name, s]));
  const wholeTime = program && program.times ? program.times.seconds : 0;
  const source = sourceRows(ops, units);

  const inFile = el("span", { class: "more" });
  const sourceList = new List({
    label: "Your source", widest: source.widest,
    seen: (i) => { const name = shown(source.fileOf(i)); if (inFile.textContent !== name) { inFile.textContent = inFile.title = name; } },
    places: (i) => source.rows[i].group,
    row: (i, row) => {
      const r = source.rows[i];
      if (r.file) { row.className = "row file"; row.append(shown(r.file)); return; }
      if (r.gap) { row.className = "row gap"; row.append("⋯"); return; }
      row.append(el("span", { class: "no" + (r.ops ? " has" : r.calls ? " calls" : "") }, String(r.line)), el("span", { class: "grow" }, coloured(r.text)));
      if (r.ops) row.append(el("span", { class: "tag" }, String(r.ops)));
      row.title = r.ops ? count(r.ops, "operation") + " of the graph" : r.calls ? "calls what holds " + count(r.calls, "operation") : "";
    },
  });
  sourceList.set(source.rows.length);

  const groupOfOp = (op) => ({ places: op.place === null ? [] : [op.place], module: op.module });
  const opList = new List({
    label: "Operations of the graph", places: (i) => groupOfOp(ops[i]),
    row: (i, row) => {
      const op = ops[i];
      row.append(el("span", { class: "no" }, String(i)), el("span", { class: "grow" }, el("span", { class: "k-fn" }, shown(op.name)), " ", el("span", { class: "k-com" }, shown(op.type))));
      row.append(el("span", { class: "tag" }, op.module ? shown(shortModule(op.module)) : op.place === null ? "" : ":" + Data.line(op.place)));
      row.title = shown(op.module ? op.module : "");
    },
  });
  opList.set(ops.length);

  const groupOfStep = (step) => ({ places: step.places, lights: [...new Set([...step.places, ...units[step.unit].places])], module: step.module });
  const stepList = new List({
    label: "Steps of the program",
    places: (i) => { const g = groupOfStep(steps[i]); return { places: g.lights, module: g.module }; },
    row: (i, row) => {
      const step = steps[i], unit = units[step.unit], time = times.get(unit.name);
      row.append(el("span", { class: "kind " + unit.kind }), el("span", { class: "grow" }, shown(unit.name)));
      if (step.module) row.append(el("span", { class: "tag" }, shown(shortModule(step.module))));
      if (time && wholeTime) row.append(el("span", { class: "heat" }, el("i", { style: { width: Math.min(100, 100 * time.seconds / time.calls / source.slowest(times)) + "%" } })));
      row.title = shown(unit.name + (step.module ? "  " + step.module : "")) + (time ? "  " + seconds(time.seconds / time.calls) : "");
    },
  });
  stepList.set(steps.length);

  const words = el("div", { class: "words" }), text = el("div", { class: "text" });
  const chosen = el("div", { class: "pane chosen" }, el("div", { class: "in" }, words, text));
  const tell = (kept) => {
    const owner = Light.owner, i = Light.index;
    if (kept && owner === stepList) tellUnit(words, text, units[steps[i].unit], steps[i], times, program);
    else if (kept) tellPlace(words, text, kept, ops, steps, units, opList, stepList);
    else tellNothing(words, text, ops, steps, units);
  };
  Light.others = [tell];
  tell(Light.kept);

  const panes = [
    ["Source", sourceList, count(source.files, "file")], ["Graph", opList, count(ops.length, "operation")],
    ["Program", stepList, program && program.eager ? "runs in eager" : steps.length ? count(steps.length, "step") + ", " + count(units.length, "kind") : ""],
  ].map(([name, list, more]) => el("section", { class: "pane", "aria-label": name }, el("div", { class: "head" }, el("h2", {}, name), list === sourceList ? inFile : "", el("span", { class: "more" + (list === sourceList ? " right" : "") }, more)), list.count ? list.element : el("p", { class: "empty" }, name === "Source" ? "The files of these lines are not on the machine that wrote this report." : name === "Graph" ? "The graph has no operations." : "It runs in eager, or the passes have not come to code.")));
  panes.push(chosen);
  const names = ["Source", "Graph", "Program", "Chosen"];
  const subtabs = el("div", { class: "subtabs" }, names.map((name, k) => el("button", { type: "button", "aria-pressed": String(k === 0), onclick: () => turn(k) }, name)));
  const turn = (k) => {
    panes.forEach((pane, n) => pane.classList.toggle("shown", n === k));
    [...subtabs.children].forEach((b, n) => b.setAttribute("aria-pressed", String(n === k)));
    [sourceList, opList, stepList].forEach((list) => { list.draw(); list.relight(); if (Light.kept && list !== Light.owner) list.showFirstLit(); });
  };
  const part = el("div", { class: "part full" }, subtabs, el("div", { class: "code3" }, panes));
  requestAnimationFrame(() => { turn(0); if (!Light.kept) sourceList.show(source.rows.findIndex((r) => r.ops)); });
  part.goTo = (place) => {
    const i = source.at(place);
    turn(0);
    if (i >= 0) { sourceList.show(i); if (!Light.isPinned(sourceList, i)) Light.pin(sourceList, i, source.rows[i].group); }
  };
  part.search = (query) => {
    const test = (word) => word.toLowerCase().includes(query);
    const hit = steps.findIndex((s) => test(units[s.unit].name) || test(s.module));
    const op = ops.findIndex((o) => test(o.name) || test(o.module) || test(o.type)), line = source.rows.findIndex((r) => r.text !== undefined && test(r.text));
    if (hit >= 0) { stepList.show(hit); Light.pin(stepList, hit, stepList.placesOf(hit)); }
    else if (op >= 0) { opList.show(op); Light.pin(opList, op, opList.placesOf(op)); }
    else if (line >= 0) { sourceList.show(line); Light.pin(sourceList, line, source.rows[line].group); }
    return hit >= 0 || op >= 0 || line >= 0;
  };
  return part;
}

const shortModule = (path) => { const parts = path.split("."); return parts.length > 3 ? "…" + parts.slice(-3).join(".") : path; };

// All files as rows: those with most operations first.
function sourceRows(ops, units) {
  const perPlace = new Map(), perFile = new Map();
  for (const op of ops) if (op.place !== null) perPlace.set(op.place, (perPlace.get(op.place) || 0) + 1);
  const numbers = new Map(); // "file:line" to the place
  Data.facts.places.forEach(([file, line], k) => numbers.set(file + ":" + line, k));
  for (const [place, n] of perPlace) perFile.set(Data.facts.places[place][0], (perFile.get(Data.facts.places[place][0]) || 0) + n);
  for (const unit of units) for (const place of unit.places) { const f = Data.facts.places[place][0]; perFile.set(f, (perFile.get(f) || 0) + 0.01); }
  for (const place of Data.below.keys()) { const f = Data.facts.places[place][0]; perFile.set(f, perFile.get(f) || 0); }
  const order = [...perFile.keys()].sort((a, b) => perFile.get(b) - perFile.get(a));
  const rows = [], found = new Map();
  let widest = 40, shownFiles = 0;
  for (const f of order) {
    const file = Data.facts.files[f];
    if (!file.parts.length) continue;
    shownFiles++;
    rows.push({ file: file.name });
    file.parts.forEach(([first, lines], k) => {
      if (k || first > 1) rows.push({ gap: true });
      lines.forEach((text, n) => {
        const line = first + n, place = numbers.get(f + ":" + line), below = place === undefined ? null : Data.below.get(place);
        const mine = place === undefined ? 0 : perPlace.get(place) || 0;
        let calls = 0;
        if (below && !mine) for (const p of below) calls += perPlace.get(p) || 0;
        const group = place === undefined ? { places: [] } : { places: [place], lights: below ? [place, ...below] : [place] };
        if (place !== undefined) found.set(place, rows.length);
        rows.push({ line, text, ops: mine, calls, group });
        widest = Math.max(widest, text.length);
      });
    });
  }
  let slow = 0;
  const slowest = (times) => slow || (slow = Math.max(...[...times.values()].map((t) => t.seconds / t.calls), 1e-12));
  const fileOf = (i) => { while (i > 0 && !rows[i].file) i--; return i >= 0 && rows.length ? rows[i].file : ""; };
  return { rows, files: shownFiles, widest: Math.min(widest, 400), at: (place) => (found.has(place) ? found.get(place) : -1), slowest, fileOf };
}

const entry = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];

function tellNothing(words, text, ops, steps, units) {
  const saved = ops.length && steps.length ? ` ${count(ops.length, "operation")} became ${count(steps.length, "step")}, which run ${count(units.filter((u) => u.kind === "kernel").length, "kernel")} that were made for you${units.some((u) => u.kind === "library") ? ", and library calls" : ""}.` : "";
  words.replaceChildren(el("h3", {}, "Nothing chosen"), el("p", { class: "note" }, "Choose a line of your source, an operation or a step of the program. What became of it, or what it came from, lights up in the other lists." + saved));
  text.replaceChildren();
  text.hidden = true;
}

function tellPlace(words, text, kept, ops, steps, units, opList, stepList) {
  const mine = ops.filter((op) => op.place !== null && kept.set.has(op.place));
  const runs = steps.filter((s) => [...s.places, ...units[s.unit].places].some((p) => kept.set.has(p)));
  const names = new Map();
  for (const s of runs) names.set(s.unit, (names.get(s.unit) || 0) + 1);
  const place = kept.places[0];
  words.replaceChildren(el("h3", {}, Data.where(place)), el("p", { class: "mono", style: { padding: "4px 0 8px", overflowWrap: "anywhere" } }, coloured(Data.source(place).trim())),
    el("dl", { class: "facts" },
      kept.module ? entry("module", shown(kept.module)) : "",
      entry("operations", mine.length ? tally(mine.map((o) => o.name)) : "none of its own"),
      entry("runs in", names.size ? el("span", { class: "lines" }, [...names].map(([u, n]) => unitButton(units[u], n, steps, u, stepList))) : "no step: it is a view, or became part of nothing")));
  text.hidden = true;
}

function unitButton(unit, n, steps, u, stepList) {
  return el("button", { class: "line", type: "button", onclick: () => { const i = steps.findIndex((s) => s.unit === u && Light.of({ places: [...s.places, ...unit.places], module: s.module })); Light.pin(stepList, i, stepList.placesOf(i)); stepList.show(i); } }, shown(unit.name) + (n > 1 ? " ×" + n : ""));
}

function tally(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
  return [...counts].map(([name, n]) => (n > 1 ? n + " " : "") + shown(name)).join(", ");
}

async function tellUnit(words, text, unit, step, times, program) {
  const time = times.get(unit.name);
  const kinds = { kernel: "a kernel that was generated for you", library: "a call of a library", copy: "a copy into memory that you gave" };
  words.replaceChildren(el("h3", { class: "mono", style: { overflowWrap: "anywhere" } }, shown(unit.name)),
    el("dl", { class: "facts", style: { paddingTop: "6px" } },
      entry("what", kinds[unit.kind] + (unit.device ? ", on " + shown(unit.device) : "")),
      step.module ? entry("module", shown(step.module)) : "",
      entry("lines", lineButtons(unit.places, 8)),
      entry("runs", count(unit.calls, "time") + " in a call"),
      step.why ? entry("why", shown(step.why)) : "",
      unit.read !== undefined ? entry("moves", `${bytes(unit.read)} read, ${bytes(unit.written)} written`) : "",
      unit.grid ? entry("grid", `${shown(unit.grid)} blocks${unit.warps ? " of " + count(unit.warps, "warp") : ""}`) : "",
      time ? entry("takes", seconds(time.seconds / time.calls) + " a run, " + percent(time.seconds / program.times.seconds) + " of a call" + (time.limit ? `; ${percent(time.share)} of its limit, ${limitWords(time.limit)}` : "")) : ""));
  const code = await codeOf(unit, program);
  text.hidden = !code;
  if (!code) { text.replaceChildren(); return; }
  const list = new List({ label: "Code of " + unit.name, widest: Math.min(300, Math.max(...code.map((l) => l.length))), row: (i, row) => { row.className = "row"; row.append(el("span", { class: "sign" }), el("span", { class: "grow" }, coloured(code[i]))); } });
  text.replaceChildren(list.element);
  list.set(code.length);
}

const limitWords = (limit) => (limit === "copy" ? "the memory's rate" : "the rate of matrix products");

// The text of one kernel: from its name's first definition to the line that closes it.
async function codeOf(unit, program) {
  if (unit.kind !== "kernel") return null;
  for (const file of program.code) {
    if (file.name === "host.py") continue;
    const lines = (await Data.text(file.text)).split("\n");
    const cpp = file.name.endsWith(".cpp");
    let start = lines.findIndex((l) => (cpp ? l.startsWith('extern "C"') && l.includes(" " + unit.name + "(") : l.startsWith("def ") && l.includes(unit.name + "(")));
    if (start < 0) continue;
    let end = start + 1;
    while (end < lines.length && !(cpp ? lines[end].startsWith("}") : lines[end] && !/^[\s)]/.test(lines[end]))) end++;
    while (start > 0 && /^(\/\/|#|@)/.test(lines[start - 1])) start--;
    return lines.slice(start, end + (cpp ? 1 : 0));
  }
  return null;
}
