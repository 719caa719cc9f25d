// The page: reads the data, fills the gallery, the table, and what is said of a chosen parameter.

const DRAWN = 6;

const report = JSON.parse(document.getElementById("data").textContent);
const isDifference = report.kind === "difference";
const told = (number) => (number === null ? "" : report.texts[number]);
const rows = report.rows.map(([name, spec, was, source, role, program, grid, stored, changed, todo]) => ({
  name,
  spec: spec === null ? null : report.specs[spec],
  was: was === null ? null : report.specs[was],
  source,
  role: told(role),
  program: told(program),
  old: grid === null ? null : report.grids[grid],
  stored: stored === null ? null : report.grids[stored],
  changed: told(changed),
  todo: told(todo),
}));

const meshOf = (spec) => report.meshes[spec.mesh];
const bytes = (spec) => (spec ? spec.bytes : 0);
const size = (spec) => (spec ? formatBytes(spec.bytes) : "");
const lost = (spec) => (spec ? spec.bytes - spec.dense : 0);
const sharded = (spec) => (spec ? spec.partition.map((axes) => axes.join("+") || "-").join(",") || "-" : "");

// ---- columns ----------------------------------------------------------------------------------------------------

const any = (value) => rows.some(value);
const columns = [{ title: "parameter", text: (row) => row.name, mono: true }];
if (any((row) => row.program)) columns.push({ title: "program", text: (row) => row.program });
columns.push({ title: "is a", text: (row) => row.role });
if (isDifference) {
  columns.push(
    { title: "changed", text: (row) => row.changed, tone: (row) => row.changed && "differs" },
    { title: "stored array", text: (row) => row.todo, tone: (row) => row.todo === "rewrite" && "differs" },
    { title: "A: shard", text: (row) => row.was?.xla ?? "", mono: true },
    { title: "B: shard", text: (row) => row.spec?.xla ?? "", mono: true },
    ...(any((row) => row.was && row.spec && sharded(row.was) !== sharded(row.spec))
      ? [
          { title: "A: sharding", text: (row) => sharded(row.was), mono: true },
          { title: "B: sharding", text: (row) => sharded(row.spec), mono: true },
        ]
      : [{ title: "sharding", text: (row) => sharded(row.spec ?? row.was), mono: true }]),
    { title: "A: per device", text: (row) => size(row.was), value: (row) => bytes(row.was), number: true },
    { title: "B: per device", text: (row) => size(row.spec), value: (row) => bytes(row.spec), number: true },
  );
} else {
  columns.push(
    { title: "shape", text: (row) => (row.spec ? `${row.spec.dtype} ${row.spec.shape.join(",") || "scalar"}` : ""), mono: true },
    { title: "sharding", text: (row) => sharded(row.spec), mono: true },
    { title: "shard and layout", text: (row) => row.spec?.xla ?? "", mono: true },
    { title: "per device", text: (row) => size(row.spec), value: (row) => bytes(row.spec), number: true },
    {
      title: "padding",
      text: (row) => (row.spec ? formatPercent(lost(row.spec), row.spec.bytes) : ""),
      value: (row) => (row.spec && row.spec.bytes ? lost(row.spec) / row.spec.bytes : 0),
      number: true,
    },
  );
  if (any((row) => row.old)) columns.push({ title: "source chunks", text: (row) => row.old?.text ?? "", mono: true });
  if (any((row) => row.stored)) columns.push({ title: "stored chunks", text: (row) => row.stored?.text ?? "", mono: true });
  // most leaves are called like the parameter they fill
  if (any((row) => row.source && !row.name.endsWith(row.source))) columns.push({ title: "from", text: (row) => row.source, mono: true });
}

// ---- a chosen parameter -----------------------------------------------------------------------------------------

const detail = document.getElementById("detail");

function facts(pairs) {
  const list = html("dl", { class: "facts" });
  for (const [name, text] of pairs) if (text) list.append(html("dt", {}, name), html("dd", {}, text));
  return list;
}

function layoutWords(spec) {
  const byDefault = spec.default === null || spec.default === spec.bytes ? "" : `${formatBytes(spec.default)} per device`;
  return facts([
    ["layout", spec.xla],
    ["sharding", sharded(spec)],
    ["chosen by", spec.chosen],
    ["wanted", spec.wanted ?? ""],
    ["by default", byDefault],
    ["memory", spec.memory === "device" ? "" : spec.memory],
  ]);
}

function arithmetic(spec) {
  const list = html("ol", { class: "arithmetic" });
  for (const line of spec.words) list.append(html("li", {}, line));
  return html("div", {}, html("h4", {}, "Its bytes"), list);
}

function side(title, spec) {
  const box = html("div", { class: "side" });
  if (title) box.append(html("h4", {}, title));
  if (!spec) return box.append(html("p", { class: "muted" }, "no such parameter")), box;
  box.append(drawLayout(spec, meshOf(spec)), layoutWords(spec), arithmetic(spec));
  return box;
}

function choose(row) {
  const parts = [html("h3", { class: "name" }, row.name)];
  parts.push(
    facts([
      ["is a", row.role],
      ["program", row.program],
      ["from", row.source],
      ["source chunks", row.old?.text],
      ["stored chunks", row.stored?.text],
      ["changed", row.changed],
      ["stored array", row.todo],
    ]),
  );
  if (row.old || row.stored) {
    const figures = html("div", { class: "figures-of-layout" });
    if (row.old) figures.append(drawChunks("Before: in the source", row.old));
    if (row.stored) figures.append(drawChunks("After: in the export", row.stored));
    parts.push(figures);
  }
  if (isDifference) parts.push(html("div", { class: "sides" }, side("A", row.was), side("B", row.spec)));
  else if (row.spec) parts.push(side("", row.spec));
  else parts.push(html("p", { class: "muted" }, "No program reads it: it is kept as it is."));
  detail.replaceChildren(...parts);
}

// ---- search -----------------------------------------------------------------------------------------------------

const search = document.getElementById("search");
const count = document.getElementById("count");
const table = new VirtualTable(document.getElementById("table"), columns, rows, {
  searched: (row) => columns.map((column) => column.text(row)).join("\n"),
  choose,
  counted: (found, all) => {
    count.textContent = found === all ? plural(all, "parameter") : `${grouped(found)} of ${plural(all, "parameter")}`;
  },
});

const choices = { all: () => true };
if (isDifference) choices["changed only"] = (row) => row.changed !== "";
else {
  if (any((row) => row.spec && lost(row.spec))) choices["padded only"] = (row) => row.spec && lost(row.spec) > 0;
  if (any((row) => row.role !== "weight")) choices["weights only"] = (row) => row.role === "weight";
}
const select = html("select", { id: "show" });
for (const name of Object.keys(choices)) select.append(html("option", { value: name }, name));
if (Object.keys(choices).length > 1) document.getElementById("choices").append(html("label", {}, "Show ", select));
if (isDifference && any((row) => row.changed)) select.value = "changed only";

const narrow = () => table.filter(search.value, choices[select.value]);
let pending = 0;
search.addEventListener("input", () => {
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(narrow);
});
select.addEventListener("change", narrow);
document.getElementById("filter").addEventListener("submit", (event) => event.preventDefault());
narrow();

// ---- gallery ----------------------------------------------------------------------------------------------------

// Equal layouts (in a difference: equal pairs of them) share one drawing.
function distinct() {
  const found = new Map();
  for (const row of rows) {
    const spec = row.spec ?? row.was;
    if (!spec || (isDifference && !row.changed)) continue;
    const key = isDifference ? `${row.was?.xla} ${sharded(row.was)} > ${row.spec?.xla} ${sharded(row.spec)}` : spec;
    const entry = found.get(key) ?? { row, names: new Set(), bytes: 0 };
    if (!entry.names.has(row.name)) entry.bytes += Math.max(bytes(row.spec), bytes(row.was));
    entry.names.add(row.name); // programs share parameters
    found.set(key, entry);
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes);
}

const gallery = document.getElementById("gallery");
const layouts = distinct();
for (const { row, names } of layouts.slice(0, DRAWN)) {
  const others = names.size > 1 ? ` and ${plural(names.size - 1, "other")} like it` : "";
  const article = html("article", {}, html("h3", {}, html("span", { class: "name" }, row.name), others));
  if (isDifference) {
    article.append(html("p", { class: "muted" }, `changes: ${row.changed}`));
    for (const [name, spec] of [["A", row.was], ["B", row.spec]]) {
      const heading = html("p", { class: "layout" }, html("b", {}, `${name} `), spec ? spec.xla : "no such parameter");
      article.append(heading);
      if (spec) article.append(drawLayout(spec, meshOf(spec)));
    }
  } else {
    article.append(html("p", { class: "layout" }, row.spec.xla), drawLayout(row.spec, meshOf(row.spec)));
  }
  gallery.append(article);
}
if (!layouts.length) gallery.append(html("p", { class: "muted" }, "Nothing changes."));
else if (layouts.length > DRAWN) {
  gallery.append(html("p", { class: "muted" }, `and ${plural(layouts.length - DRAWN, "other layout")}: choose a row of the table.`));
}
