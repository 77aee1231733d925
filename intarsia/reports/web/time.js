// The flame chart of the compile: what ran inside of what, and how long.

const PHASES = {
  capture: ["--teal", "bytecode of your function is interpreted, and becomes a graph"], graph: ["--accent", "all that a backend does with a captured graph"], key: ["--sand", "the cache is asked"], load: ["--sand", "out of the cache"],
  functionalize: ["--blue", "the graph in ATen operators, without writes"], autograd: ["--blue", "torch's AOTAutograd makes forward and backward"], import: ["--blue", "ATen operators become IR"], passes: ["--plum", "the passes"], pass: ["--plum", "one pass"],
  emit: ["--good", "text of kernels and host program"], "c++": ["--bad", "the C++ compiler and Triton"], entry: ["--teal", "the function that checks guards and calls the graph"], "first run": ["--accent", "the first call, with the packing of weights"],
  "for the report": ["--line", "for this page alone: the texts of the IR, and timing"], forward: ["--accent", "the forward half"], backward: ["--accent", "the backward half"],
};

function timePart() {
  const events = Data.facts.events;
  if (!events.length) return emptyPart("Nothing was compiled during this report.");
  const nested = nest(events.filter((e) => e.seconds)), instants = events.filter((e) => !e.seconds);
  const part = el("div", { class: "part" }), end = Math.max(...events.map((e) => e.start + e.seconds)), start = Math.min(...events.map((e) => e.start));
  const own = events.filter((e) => e.own).reduce((n, e) => n + e.seconds, 0);
  part.append(el("p", { class: "big" }, "From the first event to the last one ", el("b", {}, seconds(end - start)), own > 0.001 ? [", of which ", el("b", {}, seconds(own)), " are for this report alone: the texts of the IR, and timing."] : "."));
  part.append(el("p", { class: "note" }, "Choose a bar to see it in full width; Esc or the first button goes back." + (instants.length ? " Red marks are graph breaks, recompiles and what went to eager." : "") + ""));
  let from = start, to = end;
  const back = el("button", { type: "button", hidden: true, onclick: () => zoom(start, end) }, "All of it");
  const flame = el("div", { class: "flame card" }), said = el("p", { class: "note", role: "status" }, "\u00a0");
  const rows = Math.max(...nested.map((e) => e.row)) + 1;
  const draw = () => {
    const width = flame.clientWidth, scale = width / (to - from);
    flame.style.height = rows * 22 + 10 + "px";
    flame.replaceChildren();
    for (const e of nested) {
      const left = (e.start - from) * scale, wide = e.seconds * scale;
      if (left > width || left + wide < 0 || wide < 0.7) continue;
      const clipped = Math.max(0, left), w = Math.min(width, left + wide) - clipped;
      const [colour, about] = PHASES[e.about === "pass" ? "pass" : e.name] || ["--sand", ""];
      const label = e.name + (e.about && e.about !== "pass" ? " " + e.about : "");
      const words = `${shown(label)}: ${seconds(e.seconds)}${about ? "; " + about : ""}`;
      const made = el("button", { type: "button", title: words, style: { left: clipped + "px", width: Math.max(1, w - 0.5) + "px", top: e.row * 22 + 5 + "px", color: e.own ? "var(--ink)" : null, background: e.own ? "repeating-linear-gradient(45deg, var(--line) 0 4px, var(--raised) 4px 8px)" : "color-mix(in srgb, var(" + colour + ") 82%, black)", padding: w < 14 ? "0" : null },
        onclick: () => zoom(e.start, e.start + e.seconds), onfocus: () => said.replaceChildren(words), onpointerenter: () => said.replaceChildren(words) }, w > 26 ? shown(label) + (w > 110 ? " " + seconds(e.seconds) : "") : "");
      flame.append(made);
    }
    for (const e of instants) {
      const left = (e.start - from) * scale, words = shown(e.name + ": " + e.about);
      if (left >= 0 && left <= width) flame.append(el("button", { type: "button", class: "instant", title: words, style: { left: left - 2 + "px" }, onclick: () => Page.show("checks"), onfocus: () => said.replaceChildren(words), onpointerenter: () => said.replaceChildren(words) }));
    }
  };
  const zoom = (a, b) => { from = a; to = Math.max(b, a + 1e-6); back.hidden = a === start && b === end; draw(); };
  part.unzoom = () => { if (back.hidden) return false; zoom(start, end); return true; };
  resized(flame, draw);
  part.append(back, flame, said);
  const sums = new Map();
  for (const e of nested) { const key = e.about === "pass" ? "pass " + e.name : e.name; const s = sums.get(key) || [0, 0]; s[0] += e.self; s[1]++; sums.set(key, s); }
  const abouts = new Map(Data.facts.graphs.flatMap((g) => g.programs || []).flatMap((p) => p.passes || []).map((p) => ["pass " + p.name, shown(p.about)]));
  const sorted = [...sums].sort((p, q) => q[1][0] - p[1][0]), most = sorted[0][1][0] || 1;
  part.append(el("div", { class: "card scroll" }, el("h2", {}, "Time without what runs inside of it"), longTable([["time", "n"], [""], ["times", "n"], ["what"], ["is"]],
    sorted.map(([name, [s, n]]) => ({ cells: [seconds(s), bar(s / most), n > 1 ? "×" + n : "", el("span", { class: "mono" }, shown(name)), (PHASES[name] || [])[1] || abouts.get(name) || ""] })), 40)));
  return part;
}

// The row of each event: below those of its thread that hold it. `self` is its time without theirs.
function nest(events) {
  const threads = new Map();
  for (const e of events) { if (!threads.has(e.thread)) threads.set(e.thread, []); threads.get(e.thread).push({ ...e, self: e.seconds }); }
  const out = [];
  let base = 0;
  for (const list of threads.values()) {
    const open = [];
    let deepest = 0;
    for (const e of list.sort((p, q) => p.start - q.start || q.seconds - p.seconds)) {
      while (open.length && open[open.length - 1].start + open[open.length - 1].seconds < e.start + e.seconds - 1e-4) open.pop();
      e.row = base + open.length;
      if (open.length) open[open.length - 1].self = Math.max(0, open[open.length - 1].self - e.seconds);
      deepest = Math.max(deepest, open.length);
      open.push(e);
      out.push(e);
    }
    base += deepest + 1;
  }
  return out;
}
