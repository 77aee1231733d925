// The plan of memory over time: one rectangle a value, as wide as it lives and as high as it is large.

const POOLS = { arena: ["--teal", "in the arena, one block that a call works in"], device: ["--blue", "memory of its own while it lives"], output: ["--sand", "a result, that the program receives"], library: ["--plum", "made by a library call"] };

function memoryPart() {
  const graph = Data.nowGraph(), program = Data.nowProgram(), plan = program && program.memory;
  if (!plan || !plan.values.length) return emptyPart(plan ? "This program needs no memory beside its arguments and results." : "There is no plan to show: this graph runs in eager.");
  const values = plan.values, counts = program.counts["plan-buffers"] || {};
  const peak = peakOf(plan);
  const part = el("div", { class: "part" });
  const mine = plan.arena ? [el("b", {}, bytes(plan.arena)), " in one block (the arena)", counts["bytes without reuse"] ? [", instead of ", el("b", {}, bytes(counts["bytes without reuse"])), " if each value had its own"] : ""] : ["no arena"];
  part.append(el("p", { class: "big" }, "The program makes ", el("b", {}, count(values.length, "value")), " in memory: ", mine, ". At most ", el("b", {}, bytes(peak.bytes)), " are in use at once, in step " + (peak.step + 1) + " of " + plan.steps + (graph.eagerMemory ? "; eager needs " : ""), graph.eagerMemory ? el("b", {}, bytes(graph.eagerMemory)) : "", "."));
  part.append(el("p", { class: "note" }, "From left to right the steps of the program, from bottom to top bytes. Arguments and parameters (" + bytes(plan.given) + ") are not in it." + (plan.guessed ? " Sizes that change count as in the call that was captured." : "")));
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "Memory over time; left and right walk over the values" });
  const box = el("div", { class: "canvas card" }, canvas, el("div", { class: "legend" }, Object.keys(POOLS).filter((p) => values.some((v) => v.pool === p)).map((p) => el("span", {}, el("i", { style: { background: "var(" + POOLS[p][0] + ")" } }), POOLS[p][1]))));
  const said = el("p", { class: "note", role: "status" }, "Point at a rectangle, or walk with the arrow keys.");
  const largest = values.map((v, k) => [v, k]).sort((x, y) => y[0].bytes - x[0].bytes);
  const rows = largest.map(([v, k]) => ({ places: v.place === null ? [] : [v.place], open: () => choose(k), cells: [bytes(v.bytes), bar(v.bytes / largest[0][0].bytes), el("span", { class: "mono" }, shown(v.type)), v.pool, v.first === v.last ? "step " + (v.first + 1) : "steps " + (v.first + 1) + " to " + (v.last + 1), v.place === null ? "" : lineButton(v.place)] }));
  part.append(box, said, el("div", { class: "card scroll" }, el("h2", {}, "Values, the largest first"), longTable([["bytes", "n"], [""], ["sizes, strides, type"], ["where"], ["lives"], ["line"]], rows, 40)));

  let chosen = -1;
  const order = values.map((_, k) => k).sort((x, y) => values[x].first - values[y].first || values[x].offset - values[y].offset);
  const geometry = () => { const width = canvas.clientWidth, height = 300; return { width, height, x: (s) => 46 + (width - 52) * s / plan.steps, y: (b) => height - 18 - (height - 28) * b / plan.top }; };
  const paint = () => {
    const ratio = window.devicePixelRatio || 1, { width, height, x, y } = geometry();
    if (!width) return;
    canvas.width = width * ratio; canvas.height = height * ratio;
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim(), c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    for (let n = 0; n <= 4; n++) {
      const b = plan.top * n / 4;
      c.fillStyle = colour("--line"); c.fillRect(44, Math.round(y(b)), width - 48, 1);
      c.fillStyle = colour("--soft"); c.textAlign = "right"; c.fillText(bytes(b), 41, y(b));
    }
    values.forEach((v, k) => {
      const left = x(v.first), top = y(v.offset + v.bytes), wide = Math.max(1, x(v.last + 1) - left - 0.6), high = Math.max(1, y(v.offset) - top - 0.6);
      const lit = k === chosen ? 2 : v.place === null ? 0 : Light.of({ places: [v.place] });
      c.globalAlpha = lit ? 1 : 0.62;
      c.fillStyle = colour(POOLS[v.pool][0]); c.fillRect(left, top, wide, high);
      if (lit) { c.strokeStyle = colour("--pin"); c.lineWidth = 2; c.strokeRect(left + 1, top + 1, Math.max(1, wide - 2), Math.max(1, high - 2)); }
    });
    c.globalAlpha = 1;
    c.strokeStyle = colour("--ink"); c.lineWidth = 1.4; c.beginPath();
    peak.levels.forEach((b, s) => { c.lineTo(x(s), y(Math.min(b, plan.top))); c.lineTo(x(s + 1), y(Math.min(b, plan.top))); });
    c.stroke();
    c.fillStyle = colour("--soft"); c.textBaseline = "bottom"; c.textAlign = "left"; c.fillText("step 1", 46, height - 2);
    c.textAlign = "right"; c.fillText("step " + plan.steps, width - 6, height - 2);
  };
  canvas.style.width = "100%"; canvas.style.height = "300px";
  const choose = (k) => {
    chosen = k;
    const v = values[k];
    if (v) said.replaceChildren(`${bytes(v.bytes)} ${shown(v.type)}: ${POOLS[v.pool][1]}; written in step ${v.first + 1}, last used in step ${v.last + 1}${v.pool === "arena" ? "; at byte " + v.offset.toLocaleString("en") : ""}. `, v.place === null ? "" : lineButton(v.place));
    Light.hover(v && v.place !== null ? { places: [v.place] } : null);
    paint();
  };
  const find = (e) => {
    const { x, y } = geometry(), px = e.offsetX, py = e.offsetY;
    return values.findIndex((v) => px >= x(v.first) && px <= x(v.last + 1) && py <= y(v.offset) && py >= y(v.offset + v.bytes));
  };
  canvas.addEventListener("pointermove", (e) => { const k = find(e); if (k !== chosen) choose(k); });
  canvas.addEventListener("click", (e) => { const k = find(e); if (k >= 0) choose(k); });
  canvas.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    e.preventDefault();
    const now = order.indexOf(chosen);
    choose(order[Math.max(0, Math.min(order.length - 1, now < 0 ? 0 : now + step))]);
  });
  resized(canvas, paint);
  Light.others = [paint];
  Page.repaint = paint;
  return part;
}

// Bytes in use in each step: of the arena those that some value has, of the others their own.
function peakOf(plan) {
  const change = new Array(plan.steps + 1).fill(0);
  for (const v of plan.values) {
    if (v.pool === "arena") continue;
    change[v.first] += v.bytes; change[Math.min(plan.steps, v.last + 1)] -= v.bytes;
  }
  const starts = Array.from({ length: plan.steps }, () => []);
  for (const v of plan.values) if (v.pool === "arena") for (let s = v.first; s <= v.last && s < plan.steps; s++) starts[s].push([v.offset, v.offset + v.bytes]);
  const levels = [];
  let now = 0;
  for (let s = 0; s < plan.steps; s++) {
    now += change[s];
    let used = 0, end = 0;
    for (const [from, to] of starts[s].sort((x, y) => x[0] - y[0])) { if (to > end) { used += to - Math.max(from, end); end = to; } }
    levels.push(now + used);
  }
  const most = Math.max(0, ...levels);
  return { levels, bytes: most, step: Math.max(0, levels.indexOf(most)) };
}
