"use strict";
// Drawings of one layout: the mesh, the whole array cut into shards, and one shard as it lies in memory.
// Every text is set as text, never parsed: names come from checkpoints.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function html(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
}

function label(x, y, text, more) {
  return svg("text", { x, y, ...more }, text);
}

const product = (numbers) => numbers.reduce((a, b) => a * b, 1);
const grouped = (number) => number.toLocaleString("en-GB");
const plural = (count, noun) => `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
const join = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.round(bytes * 10) / 10 >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return unit ? `${bytes.toFixed(1)} ${units[unit]}` : `${bytes} B`;
}

function formatPercent(part, whole) {
  const share = whole ? (100 * part) / whole : 0;
  return share === 0 ? "" : `${share < 9.95 ? share.toFixed(1) : Math.round(share)} %`;
}

// ---- sharding ---------------------------------------------------------------------------------------------------

const MOST_CELLS = 16; // a side of a drawing; more would not be seen
const NOT_ALL = `At most ${MOST_CELLS} parts a side are drawn.`;

function shardCounts(spec, mesh) {
  const sizes = new Map(mesh);
  return spec.partition.map((axes) => product(axes.map((axis) => sizes.get(axis) ?? 1)));
}

// The number of the shard on a device: C order over the shards, the axes of a dimension major first.
function shardOf(device, spec, mesh) {
  const sizes = new Map(mesh);
  const at = new Map(mesh.map(([axis], index) => [axis, device[index]]));
  let number = 0;
  for (const axes of spec.partition) {
    for (const axis of axes) number = number * (sizes.get(axis) ?? 1) + (at.get(axis) ?? 0);
  }
  return number;
}

function meshDrawing(spec, mesh) {
  const columns = mesh.length ? mesh.at(-1)[1] : 1;
  const outer = mesh.slice(0, -1);
  const rows = product(outer.map(([, size]) => size));
  const shownRows = Math.min(rows, MOST_CELLS);
  const shownColumns = Math.min(columns, MOST_CELLS);
  const cell = Math.max(14, Math.min(30, Math.floor(240 / Math.max(shownRows, shownColumns))));
  const left = outer.length ? 22 : 2;
  const top = 20;
  const drawing = svg("svg", {
    class: "drawing",
    width: Math.max(left + shownColumns * cell + 4, 150),
    height: top + shownRows * cell + 4,
    role: "img",
    "aria-label": `mesh of ${plural(rows * columns, "device")}`,
  });
  if (mesh.length) drawing.append(label(left, 12, `${mesh.at(-1)[0]} ${columns} →`, { class: "axis" }));
  if (outer.length) {
    const text = outer.map(([axis, size]) => `${axis} ${size}`).join(" × ");
    drawing.append(
      label(0, 0, `← ${text}`, {
        class: "axis",
        transform: `translate(14 ${top + shownRows * cell}) rotate(-90)`,
      }),
    );
  }
  for (let row = 0; row < shownRows; row += 1) {
    let rest = row;
    const above = outer.map(([, size]) => size).reduceRight((found, size) => {
      found.unshift(rest % size);
      rest = Math.floor(rest / size);
      return found;
    }, []);
    for (let column = 0; column < shownColumns; column += 1) {
      const device = [...above, column];
      const shard = shardOf(device, spec, mesh);
      const x = left + column * cell;
      const y = top + row * cell;
      const place = mesh.map(([axis], index) => `${axis} ${device[index]}`).join(", ");
      const group = svg("g", { class: "shard", "data-shard": shard });
      group.append(
        svg("title", {}, `device at ${place || "the only place"}: shard ${shard}`),
        svg("rect", { x, y, width: cell - 2, height: cell - 2 }),
      );
      if (cell >= 18) group.append(label(x + cell / 2 - 1, y + cell / 2 + 3, String(shard), { class: "inside" }));
      drawing.append(group);
    }
  }
  return { drawing, cut: rows > shownRows || columns > shownColumns };
}

// Two dimensions are drawn: those that are cut first, then the last ones.
function drawnDimensions(counts) {
  const last = counts.map((_, dimension) => dimension).reverse();
  const cut = last.filter((dimension) => counts[dimension] > 1);
  return [...cut, ...last.filter((dimension) => counts[dimension] <= 1)].slice(0, 2).sort((a, b) => a - b);
}

// An array of `shape` cut into `counts` parts along its dimensions; parts are numbered in C order.
function gridDrawing(shape, counts, what) {
  const shown = drawnDimensions(counts);
  const [rowDimension, columnDimension] = shown.length === 2 ? shown : [null, shown[0] ?? null];
  const rows = rowDimension === null ? 1 : counts[rowDimension];
  const columns = columnDimension === null ? 1 : counts[columnDimension];
  const [r, c] = [Math.min(rows, MOST_CELLS), Math.min(columns, MOST_CELLS)];
  const width = columnDimension === null ? 30 : 208;
  const height = rowDimension === null ? 30 : 112;
  const left = rowDimension === null ? 2 : 22;
  const top = 20;
  const others = counts.map((_, dimension) => dimension).filter((dimension) => !shown.includes(dimension));
  const offset = product(others.map((dimension) => shape[dimension])) > 1 ? 4 : 0;
  const drawing = svg("svg", {
    class: "drawing",
    width: left + width + 2 * offset + 6,
    height: top + height + 2 * offset + 6,
    role: "img",
    "aria-label": `the array in ${plural(product(counts), what)}`,
  });
  for (const step of offset ? [2, 1] : []) {
    const shift = { x: left + step * offset, y: top + step * offset, width, height };
    drawing.append(svg("rect", { class: "sheet", ...shift }));
  }
  const stride = counts.map((_, dimension) => product(counts.slice(dimension + 1)));
  for (let row = 0; row < r; row += 1) {
    for (let column = 0; column < c; column += 1) {
      let part = 0;
      if (rowDimension !== null) part += row * stride[rowDimension];
      if (columnDimension !== null) part += column * stride[columnDimension];
      const x = left + (column * width) / c;
      const y = top + (row * height) / r;
      const group = svg("g", { class: what, [`data-${what}`]: part });
      group.append(
        svg("title", {}, `${what} ${part}`),
        svg("rect", { x, y, width: width / c - 1, height: height / r - 1 }),
      );
      if (width / c >= 18 && height / r >= 15) {
        group.append(label(x + width / c / 2, y + height / r / 2 + 4, String(part), { class: "inside" }));
      }
      drawing.append(group);
    }
  }
  if (columnDimension !== null) {
    drawing.append(label(left, 12, `dim ${columnDimension}: ${grouped(shape[columnDimension])} →`, { class: "axis" }));
  }
  if (rowDimension !== null) {
    drawing.append(
      label(0, 0, `← dim ${rowDimension}: ${grouped(shape[rowDimension])}`, {
        class: "axis",
        transform: `translate(14 ${top + height}) rotate(-90)`,
      }),
    );
  }
  return { drawing, others, cut: rows > r || columns > c };
}

function shardingWords(spec, mesh, others) {
  const counts = shardCounts(spec, mesh);
  const used = new Set(spec.partition.flat());
  const copies = product(mesh.filter(([axis]) => !used.has(axis)).map(([, size]) => size));
  const cuts = counts.flatMap((count, dimension) =>
    count > 1 ? [`dim ${dimension} in ${grouped(count)} along ${spec.partition[dimension].join(" and ")}`] : [],
  );
  const shards = product(counts);
  const words = [];
  if (shards > 1) words.push(`Cut into ${plural(shards, "shard")}: ${join(cuts)}.`);
  else words.push(`Not cut: every device holds the whole array.`);
  if (shards > 1 && copies > 1) {
    const along = mesh.filter(([axis, size]) => !used.has(axis) && size > 1).map(([axis]) => axis);
    words.push(`Each shard is held ${grouped(copies)} times, along ${join(along)}.`);
  }
  const stacked = others.filter((dimension) => spec.shape[dimension] > 1);
  if (stacked.length) {
    words.push(`Not drawn: ${join(stacked.map((d) => `dim ${d} of ${grouped(spec.shape[d])}`))}.`);
  }
  return words.join(" ");
}

// ---- memory -----------------------------------------------------------------------------------------------------

const TILE_WIDTH = 88;
const TILE_HEIGHT = 46;

// Which of `count` tiles are drawn: all of three, else the first two and the last, with a gap between.
function drawnTiles(count) {
  return count <= 3 ? Array.from({ length: count }, (_, index) => index) : [0, 1, count - 1];
}

function memoryDrawing(spec) {
  const order = spec.order;
  const tile = spec.tiles[0] ?? [];
  const merged = tile.some((extent) => extent < 1); // XLA's "*": the words say it
  const tiled = tile.length > 0 && !merged;
  const extents = order.map((dimension) => spec.shard[dimension]);
  const names = order.map((dimension) => `dim ${dimension}`);
  while (extents.length < Math.max(1, tiled ? tile.length : 0)) {
    extents.unshift(1);
    names.unshift("");
  }
  if (extents.includes(0)) return null;
  const columns = extents.at(-1);
  const rows = extents.at(-2) ?? 1;
  const tileColumns = tiled ? tile.at(-1) : columns;
  const tileRows = tiled && tile.length > 1 ? tile.at(-2) : tiled ? 1 : rows;
  const across = Math.ceil(columns / tileColumns);
  const down = Math.ceil(rows / tileRows);
  const sheets = product(extents.slice(0, -2));
  const flat = rows === 1 && tileRows === 1;
  const width = tiled ? TILE_WIDTH : 200;
  const height = flat ? 22 : tiled ? TILE_HEIGHT : 92;
  const gap = 20;
  const place = (index, count, size) => (count > 3 && index === count - 1 ? 2 * size + gap : Math.min(index, 2) * size);
  const left = flat ? 2 : 22;
  const top = 20;
  const totalWidth = place(across - 1, across, width) + width;
  const totalHeight = place(down - 1, down, height) + height;
  const offset = sheets > 1 ? 4 : 0;
  const drawing = svg("svg", {
    class: "drawing",
    width: Math.max(left + totalWidth + 2 * offset + 4, 190),
    height: top + totalHeight + 2 * offset + 4,
    role: "img",
    "aria-label": "one shard in a device's memory",
  });
  for (const step of offset ? [2, 1] : []) {
    const shift = { x: left + step * offset, y: top + step * offset, width: totalWidth, height: totalHeight };
    drawing.append(svg("rect", { class: "sheet", ...shift }));
  }
  for (const row of drawnTiles(down)) {
    for (const column of drawnTiles(across)) {
      const x = left + place(column, across, width);
      const y = top + place(row, down, height);
      const usedColumns = Math.min(1, (columns - column * tileColumns) / tileColumns);
      const usedRows = Math.min(1, (rows - row * tileRows) / tileRows);
      if (usedColumns * usedRows < 1) drawing.append(svg("rect", { class: "padding", x, y, width, height }));
      const used = { x, y, width: width * usedColumns, height: height * usedRows };
      drawing.append(svg("rect", { class: "element", ...used }));
      drawing.append(svg("rect", { class: "tile", x, y, width, height }));
    }
  }
  if (across > 3) drawing.append(label(left + 2 * width + gap / 2, top + totalHeight / 2 + 4, "⋯", { class: "gap" }));
  if (down > 3) drawing.append(label(left + totalWidth / 2, top + 2 * height + gap / 2 + 4, "⋮", { class: "gap" }));
  drawing.append(walk(left, top, width, height, Math.min(1, columns / tileColumns), Math.min(1, rows / tileRows), flat));
  drawing.append(label(left, 12, `${names.at(-1) || "one element"}: ${grouped(columns)} →`, { class: "axis" }));
  if (!flat) {
    const name = names.at(-2) ? `${names.at(-2)}: ${grouped(rows)}` : "nothing below";
    const turn = `translate(14 ${top + totalHeight}) rotate(-90)`;
    drawing.append(label(0, 0, names.at(-2) ? `← ${name}` : "", { class: "axis", transform: turn }));
  }
  const words = [];
  if (order.length > 1) words.push(`Slowest to fastest: ${join(order.map((dimension) => `dim ${dimension}`))}.`);
  if (tiled) {
    words.push(`Tiles of ${tile.join(" × ")}: ${grouped(down)} down, ${grouped(across)} across.`);
    if (spec.tiles.length > 1) words.push(`Inside a tile, blocks of ${spec.tiles.slice(1).map((t) => t.join(" × ")).join(", then ")}.`);
  } else {
    words.push(merged ? "Its tiles merge dimensions, and are not drawn: see its bytes." : "No tiles.");
  }
  if (sheets > 1) {
    const dimensions = order.slice(0, -2).filter((dimension) => spec.shard[dimension] > 1);
    words.push(`${grouped(sheets)} such sheets, along ${join(dimensions.map((dimension) => `dim ${dimension}`))}.`);
  }
  return { drawing, words: words.join(" ") };
}

// The way through the first tile: along a row, then the next.
function walk(left, top, width, height, usedColumns, usedRows, flat) {
  const right = left + Math.max(8, width * usedColumns) - 5;
  const lines = flat ? 1 : usedRows * height > 26 ? 3 : 1;
  const step = flat ? 0 : Math.min(11, (usedRows * height) / (lines + 1));
  const points = [];
  for (let line = 0; line < lines; line += 1) {
    const y = flat ? top + height / 2 : top + step * (line + 0.8);
    points.push(`${line ? "L" : "M"}${left + 5} ${y}`, `L${right} ${y}`);
  }
  return svg("path", { class: "walk", d: points.join(" "), "marker-end": "url(#arrow)" });
}

// ---- storage ----------------------------------------------------------------------------------------------------

function drawChunks(title, grid) {
  const counts = grid.shape.map((extent, dimension) => Math.ceil(extent / grid.chunk[dimension]));
  const whole = gridDrawing(grid.shape, counts, "chunk");
  const cuts = counts.flatMap((count, dimension) => (count > 1 ? [`dim ${dimension} in ${grouped(count)}`] : []));
  const words = [cuts.length ? `Cut into ${plural(product(counts), "chunk")}: ${join(cuts)}.` : "One chunk."];
  if (grid.order && grid.order.length > 1) {
    words.push(`In a chunk, slowest to fastest: ${join(grid.order.map((dimension) => `dim ${dimension}`))}.`);
  }
  if (whole.cut) words.push(NOT_ALL);
  return figure(title, whole.drawing, words.join(" "));
}

// ---- layouts, with words -------------------------------------------------------------------------------------------

function figure(title, drawing, words) {
  return html("figure", {}, html("figcaption", {}, html("b", {}, title)), drawing, html("p", {}, words));
}

function drawLayout(spec, mesh) {
  const box = html("div", { class: "figures-of-layout" });
  const whole = gridDrawing(spec.shape, shardCounts(spec, mesh), "shard");
  const devices = meshDrawing(spec, mesh);
  const memory = memoryDrawing(spec);
  const shape = `${spec.dtype} ${spec.shape.join(" × ") || "scalar"}`;
  const note = whole.cut || devices.cut ? ` ${NOT_ALL}` : "";
  box.append(
    figure(`The array: ${shape}`, whole.drawing, shardingWords(spec, mesh, whole.others) + note),
    figure("The mesh: which shard each device holds", devices.drawing, ""),
  );
  const lost = spec.bytes - spec.dense;
  const cost = `${formatBytes(spec.bytes)}${lost ? `, ${formatPercent(lost, spec.bytes)} padding` : ", no padding"}`;
  if (memory) box.append(figure(`One shard in memory: ${cost}`, memory.drawing, memory.words));
  mark(box, 0);
  box.addEventListener("pointerover", (event) => {
    const shard = event.target.closest("[data-shard]");
    if (shard) mark(box, shard.dataset.shard);
  });
  box.addEventListener("pointerleave", () => mark(box, 0));
  return box;
}

function mark(box, shard) {
  for (const element of box.querySelectorAll("[data-shard]")) {
    element.classList.toggle("on", element.dataset.shard === String(shard));
  }
}
