// Which operations became one kernel, and which did not, with what the cost model weighed.

function fusionPart() {
  const program = Data.nowProgram();
  if (!program || !program.remarks) return emptyPart("No pass ran for this graph.");
  const fuse = program.remarks.filter((r) => r.pass === "fuse"), counts = program.counts.fuse || {};
  const groups = { fused: [], refused: [], recomputed: [] };
  for (const remark of merged(fuse)) (groups[remark.kind] = groups[remark.kind] || []).push(remark);
  const others = merged(program.remarks.filter((r) => r.pass !== "fuse"));
  const part = el("div", { class: "part" });
  if (counts["kernels before"]) {
    part.append(el("p", { class: "big" }, "Fusion made ", el("b", {}, count(counts.kernels, "kernel")), " of what would have been ", el("b", {}, counts["kernels before"].toLocaleString("en")), ": they move ", el("b", {}, bytes(counts.bytes)), " instead of ", el("b", {}, bytes(counts["bytes before"])), " through memory."));
    part.append(el("p", { class: "note" }, "Two operations run in one kernel where what lies between them need not go through memory. A cost model weighs the bytes saved against what would be computed twice; equal decisions (the layers of a model) are one row."));
  }
  const names = { fused: "Merged", refused: "Stay apart", recomputed: "Computed again", others: "Other decisions" };
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Decisions" }), host = el("div", { class: "card scroll" });
  const kinds = [...Object.keys(groups).filter((k) => groups[k].length), ...(others.length ? ["others"] : [])];
  const show = (kind) => {
    [...chips.children].forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.kind === kind)));
    host.replaceChildren(kind === "others" ? otherTable(others) : kind === "refused" ? refusedTable(groups.refused) : kind === "fused" ? fusedTable(groups.fused) : otherTable(groups[kind]));
  };
  for (const kind of kinds) {
    const button = el("button", { type: "button", onclick: () => show(kind) }, (names[kind] || kind) + " " + (kind === "others" ? others : groups[kind]).reduce((n, r) => n + r.times, 0));
    button.dataset.kind = kind;
    chips.append(button);
  }
  if (!kinds.length) return emptyPart(program.cached ? "This program came out of the cache, so that no pass ran." : "There was nothing to fuse.");
  part.append(chips, host);
  show(kinds[0]);
  return part;
}

// Equal remarks as one, with how often it was made.
function merged(remarks) {
  const found = new Map();
  for (const r of remarks) {
    const key = JSON.stringify([r.pass, r.kind, r.text, r.places]);
    if (found.has(key)) found.get(key).times++;
    else found.set(key, { ...r, times: 1 });
  }
  return [...found.values()];
}

function pairOf(remark) {
  const [names, ...rest] = remark.text.split(": "), [a, b] = names.split(" with ");
  return { a: a || names, b: b || "", reason: rest.join(": ") };
}

const chain = (names) => el("span", { class: "mono" }, shown(names).split("+").join(" + "));
const often = (r) => (r.times > 1 ? "×" + r.times : "");

function fusedTable(rows) {
  const sorted = [...rows].sort((a, b) => b.times * (b.numbers.saved || 0) - a.times * (a.numbers.saved || 0));
  const most = Math.max(1, ...sorted.map((r) => r.numbers.saved || 0));
  return longTable([["saved", "n"], [""], ["computed twice", "n"], ["operations"], ["join"], [""], ["lines"]], sorted.map((r) => {
    const { a, b } = pairOf(r);
    return { places: r.places, cells: [bytes(r.numbers.saved), bar((r.numbers.saved || 0) / most, "good"), r.numbers.again ? bytes(r.numbers.again) : "", chain(a), chain(b), often(r), lineButtons(r.places)] };
  }));
}

function refusedTable(rows) {
  const sorted = [...rows].sort((a, b) => b.times * (b.numbers.between || 0) - a.times * (a.numbers.between || 0));
  const most = Math.max(1, ...sorted.map((r) => r.numbers.between || 0));
  return longTable([["stored between", "n"], [""], ["would save", "n"], ["would repeat", "n"], ["operations"], ["stay apart from"], ["because"], [""], ["lines"]], sorted.map((r) => {
    const { a, b, reason } = pairOf(r);
    const known = "saved" in r.numbers;
    return { places: r.places, cells: [bytes(r.numbers.between), bar((r.numbers.between || 0) / most, "bad"), known ? bytes(r.numbers.saved) : "", known ? bytes(r.numbers.again) : "", chain(a), chain(b), shown(reason), often(r), lineButtons(r.places)] };
  }));
}

function otherTable(rows) {
  return longTable([["pass"], ["what"], ["decision"], [""], ["lines"]], rows.map((r) => ({ places: r.places, cells: [el("span", { class: "mono" }, shown(r.pass)), shown(r.kind), shown(r.text), often(r), lineButtons(r.places)] })));
}

function emptyPart(words) { return el("div", { class: "part" }, el("p", { class: "empty" }, words)); }
