// The IR behind each pass, whole or as what the pass changed.

function irPart() {
  const program = Data.nowProgram(), passes = program && program.passes || [];
  if (!passes.length) return emptyPart(program && program.cached ? "This program came out of the cache: no pass ran, and there is no IR of each to show." : "There is no IR to show: this graph runs in eager.");
  let at = 0, changes = true;
  const passList = new List({
    label: "Passes", choose: (i) => show(i),
    row: (i, row) => {
      const p = passes[i];
      row.append(el("span", { class: "no" }, String(i)), el("span", { class: "grow", style: p.changed ? {} : { color: "var(--com)" } }, shown(p.name)), el("span", { class: "tag" }, p.changed ? (i ? seconds(p.seconds) : "") : "no change"), el("span", { style: { width: "8px" } }), el("span", { class: "level " + p.level }, p.level));
      row.classList.toggle("pinned", i === at);
      row.title = shown(p.about);
    },
  });
  const head = el("div", { class: "head" }), body = el("div", { class: "body" });
  const part = el("div", { class: "part full" }, el("div", { class: "two" },
    el("section", { class: "pane", "aria-label": "Passes" }, el("div", { class: "head" }, el("h2", {}, "Passes"), el("span", { class: "more" }, "in the order in which they ran")), passList.element),
    el("section", { class: "pane", "aria-label": "IR" }, head, body)));
  passList.set(passes.length);

  async function show(i) {
    at = i;
    passList.set(passes.length);
    passList.active = i;
    passList.show(i, true);
    const p = passes[i], whole = i === 0 || !changes;
    const mode = el("button", { type: "button", class: "push", "aria-pressed": String(changes), disabled: i === 0, onclick: () => { changes = !changes; show(at); } }, changes ? "Show all" : "Show changes");
    head.replaceChildren(el("h2", {}, i ? "Behind " + shown(p.name) : "As imported"), el("span", { class: "more hide-small" }, shown(p.about)), mode);
    const after = await Data.located(p.text), before = i ? await Data.located(passes[i - 1].text) : null;
    if (at !== i) return;
    if (!whole && p.text === passes[i - 1].text) { body.replaceChildren(el("p", { class: "empty" }, "This pass changed nothing.")); return; }
    const rows = whole ? after.lines.map((text, n) => ({ text, place: after.at[n], sign: "" })) : changedRows(before, after);
    const list = new List({
      label: "IR behind " + p.name, widest: Math.min(400, rows.reduce((w, r) => Math.max(w, (r.text || "").length), 0)),
      places: (n) => (rows[n].place >= 0 && rows[n].place !== undefined ? { places: [rows[n].place] } : null),
      row: (n, row) => {
        const r = rows[n];
        if (r.skipped) { row.className = "row gap"; row.append("⋯ " + count(r.skipped, "line") + " as before"); return; }
        row.classList.toggle("add", r.sign === "+"); row.classList.toggle("gone", r.sign === "−");
        row.append(el("span", { class: "sign" }, r.sign), el("span", { class: "grow" }, coloured(r.text.length > 4000 ? r.text.slice(0, 4000) + " …" : r.text, "ir")));
      },
    });
    body.replaceChildren(...list.element.childNodes);
    list.set(rows.length);
    part.now = { list, rows };
    if (!whole) head.insertBefore(el("span", { class: "more" }, `+${rows.filter((r) => r.sign === "+").length} −${rows.filter((r) => r.sign === "−").length}`), mode);
    if (Light.kept) list.showFirstLit();
  }
  part.search = (query) => {
    const n = part.now ? part.now.rows.findIndex((r) => r.text && r.text.toLowerCase().includes(query)) : -1;
    if (n >= 0) { part.now.list.active = n; part.now.list.show(n); part.now.list.relight(); }
    return n >= 0;
  };
  part.pass = show;
  const wanted = passes.findIndex((p, i) => i && p.changed);
  show(Math.max(0, wanted));
  return part;
}

// The lines of both texts in order, with what is equal far from any change left out. Numbers of values do not count.
function changedRows(before, after) {
  const erase = (line) => line.replace(/%\d+/g, "%");
  const a = before.lines.map(erase), b = after.lines.map(erase);
  const rows = [];
  for (const [kind, a0, a1, b0, b1] of differences(a, b)) {
    if (kind === "=") for (let n = 0; n < b1 - b0; n++) rows.push({ text: after.lines[b0 + n], place: after.at[b0 + n], sign: "" });
    else {
      for (let n = a0; n < a1; n++) rows.push({ text: before.lines[n], place: before.at[n], sign: "−" });
      for (let n = b0; n < b1; n++) rows.push({ text: after.lines[n], place: after.at[n], sign: "+" });
    }
  }
  const near = new Uint8Array(rows.length);
  rows.forEach((r, i) => { if (r.sign) for (let k = Math.max(0, i - 2); k <= Math.min(rows.length - 1, i + 2); k++) near[k] = 1; });
  const out = [];
  for (let i = 0; i < rows.length; i++) {
    if (near[i]) out.push(rows[i]);
    else if (out.length && out[out.length - 1].skipped) out[out.length - 1].skipped++;
    else out.push({ skipped: 1 });
  }
  return out;
}

// Blocks ["=" or "!", a0, a1, b0, b1]: lines that occur once on both sides hold the texts together, what lies between is compared step by step.
function differences(a, b) {
  const out = [];
  const push = (kind, a0, a1, b0, b1) => {
    if (a0 === a1 && b0 === b1) return;
    const last = out[out.length - 1];
    if (last && last[0] === kind && last[2] === a0 && last[4] === b0) { last[2] = a1; last[4] = b1; } else out.push([kind, a0, a1, b0, b1]);
  };
  const walk = (a0, a1, b0, b1) => {
    let n = 0;
    while (a0 + n < a1 && b0 + n < b1 && a[a0 + n] === b[b0 + n]) n++;
    push("=", a0, a0 + n, b0, b0 + n);
    a0 += n; b0 += n;
    let m = 0;
    while (a1 - m > a0 && b1 - m > b0 && a[a1 - 1 - m] === b[b1 - 1 - m]) m++;
    const endA = a1 - m, endB = b1 - m;
    const anchors = endA > a0 && endB > b0 ? anchorsOf(a, b, a0, endA, b0, endB) : [];
    if (anchors.length) {
      let x = a0, y = b0;
      for (const [i, j] of anchors) { walk(x, i, y, j); push("=", i, i + 1, j, j + 1); x = i + 1; y = j + 1; }
      walk(x, endA, y, endB);
    } else if ((endA - a0) * (endB - b0) <= 250000) small(a, b, a0, endA, b0, endB, push);
    else push("!", a0, endA, b0, endB);
    push("=", endA, a1, endB, b1);
  };
  walk(0, a.length, 0, b.length);
  return out;
}

function anchorsOf(a, b, a0, a1, b0, b1) {
  const seen = new Map();
  for (let i = a0; i < a1; i++) { const s = seen.get(a[i]); if (s) s[0]++; else seen.set(a[i], [1, i, 0, -1]); }
  for (let j = b0; j < b1; j++) { const s = seen.get(b[j]); if (s) { s[2]++; s[3] = j; } }
  const pairs = [...seen.values()].filter((s) => s[0] === 1 && s[2] === 1).map((s) => [s[1], s[3]]).sort((p, q) => p[0] - q[0]);
  const tails = [], from = [];
  pairs.forEach(([, j], k) => {
    let low = 0, high = tails.length;
    while (low < high) { const mid = (low + high) >> 1; if (pairs[tails[mid]][1] < j) low = mid + 1; else high = mid; }
    from[k] = low ? tails[low - 1] : -1;
    tails[low] = k;
  });
  const chosen = [];
  for (let k = tails.length ? tails[tails.length - 1] : -1; k >= 0; k = from[k]) chosen.push(pairs[k]);
  return chosen.reverse();
}

// The longest common lines of two short pieces.
function small(a, b, a0, a1, b0, b1, push) {
  const n = a1 - a0, m = b1 - b0, width = m + 1, best = new Uint16Array((n + 1) * width);
  for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) best[i * width + j] = a[a0 + i] === b[b0 + j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
  let i = 0, j = 0, x = 0, y = 0;
  const flush = () => { push("!", a0 + x, a0 + i, b0 + y, b0 + j); };
  while (i < n && j < m) {
    if (a[a0 + i] === b[b0 + j]) { flush(); push("=", a0 + i, a0 + i + 1, b0 + j, b0 + j + 1); i++; j++; x = i; y = j; }
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i++;
    else j++;
  }
  i = n; j = m;
  flush();
}
