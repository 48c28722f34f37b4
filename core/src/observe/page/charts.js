// Charts: lines over steps, stacked areas over time, bars, a heat map.

// Axes of a plot; returns its scales. `y`: {range, format, binary}; `x`: {range, format, label, whole}.
function plot({add, width, height}, x, y) {
  const area = {left: 64, right: width - 12, top: 10, bottom: height - 38};
  const across = linear(x.range, [area.left, area.right]), up = linear(y.range, [area.bottom, area.top]);
  for (const value of ticks(...y.range, 5, {binary: y.binary})) {
    add("line", {class: "grid", x1: area.left, x2: area.right, y1: up(value), y2: up(value)});
    add("text", {x: area.left - 8, y: up(value) + 4, "text-anchor": "end"}, y.format(value));
  }
  const marks = ticks(...x.range, Math.max(4, Math.floor(width / 90)), {whole: x.whole});
  for (const value of marks) add("text", {x: across(value), y: area.bottom + 17, "text-anchor": "middle"}, x.format(value));
  add("line", {class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom});
  add("text", {x: area.right, y: area.bottom + 34, "text-anchor": "end"}, x.label);
  return {across, up, area};
}

// Pieces of a line between gaps (values that are missing or not finite).
function linePath(xs, ys, across, up) {
  let path = "", pen = false;
  ys.forEach((y, i) => {
    if (y === null || !isFinite(y)) { pen = false; return; }
    path += `${pen ? "L" : "M"}${across(xs[i]).toFixed(1)} ${up(y).toFixed(1)}`;
    pen = true;
  });
  return path;
}

// Means over `half` values to either side, fewer at the ends: nothing lags.
function smoothed(values, half) {
  const sums = [0], counts = [0];
  for (const value of values) {
    const there = value !== null && isFinite(value);
    sums.push(sums[sums.length - 1] + (there ? value : 0));
    counts.push(counts[counts.length - 1] + (there ? 1 : 0));
  }
  return values.map((value, i) => {
    const reach = Math.min(half, i, values.length - 1 - i), from = i - reach, to = i + reach + 1;
    return value === null || counts[to] === counts[from] ? null : (sums[to] - sums[from]) / (counts[to] - counts[from]);
  });
}

// series: [{name, x, y, low, high, colour, style, smooth, dots}]. marks: [{x, label}]. Options: format, zero (the axis begins at 0), height.
function lineChart(figure, series, {format = significant, zero = false, height = 250, marks = [], level = null, binary = false} = {}) {
  series = series.filter((s) => s.y.some((v) => v !== null && isFinite(v)));
  if (!series.length) return false;
  if (series.length > 1 || level) {
    legend(figure, [...series.map((s) => ({name: s.name, colour: s.colour, style: s.style})), ...(level ? [{name: level.name, colour: colour("bad"), style: "dashed"}] : [])]);
  }
  const canvas = drawing(figure, height);
  let [low, high] = extent(series.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]));
  if (level) [low, high] = [Math.min(low, level.value), Math.max(high, level.value)];
  if (zero) low = Math.min(0, low);
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  const range = [zero && low === 0 ? 0 : low - pad, high + pad];
  let steps = extent(series.flatMap((s) => s.x));
  if (steps[0] === steps[1]) steps = [steps[0] - 1, steps[1] + 1];
  const {across, up, area} = plot(canvas, {range: steps, format: count, label: "step", whole: true}, {range, format, binary});
  for (const mark of marks) {
    if (mark.x < steps[0] || mark.x > steps[1]) continue;
    canvas.add("line", {class: "mark", x1: across(mark.x), x2: across(mark.x), y1: area.top, y2: area.bottom});
  }
  if (level) canvas.add("line", {class: "budget", x1: area.left, x2: area.right, y1: up(level.value), y2: up(level.value)});
  for (const s of series) {
    if (s.low) {
      const there = s.x.map((_, i) => i).filter((i) => s.low[i] !== null && s.high[i] !== null);
      const points = [...there.map((i) => `${across(s.x[i]).toFixed(1)} ${up(s.high[i]).toFixed(1)}`), ...there.reverse().map((i) => `${across(s.x[i]).toFixed(1)} ${up(s.low[i]).toFixed(1)}`)];
      canvas.add("path", {d: `M${points.join("L")}Z`, fill: s.colour, opacity: 0.15});
    }
    const smooth = s.smooth && s.y.length > 60;
    canvas.add("path", {d: linePath(s.x, s.y, across, up), fill: "none", stroke: s.colour, "stroke-width": smooth ? 1 : 1.8, "stroke-dasharray": s.style === "dashed" ? "6 4" : "none",
                        "stroke-linejoin": "round", opacity: smooth ? 0.35 : 1});
    if (smooth) canvas.add("path", {d: linePath(s.x, smoothed(s.y, Math.ceil(s.y.length / 60)), across, up), fill: "none", stroke: s.colour, "stroke-width": 2, "stroke-linejoin": "round"});
    if (s.dots || s.y.length < 25) s.y.forEach((y, i) => { if (y !== null && isFinite(y) && s.style !== "dashed") canvas.add("circle", {cx: across(s.x[i]), cy: up(y), r: 2.6, fill: s.colour}); });
  }
  const cross = canvas.add("line", {class: "cross", y1: area.top, y2: area.bottom, x1: -9, x2: -9, visibility: "hidden"});
  tip(canvas.svg, (px) => {
    cross.setAttribute("visibility", "hidden");
    if (px === null || px < area.left - 4 || px > area.right + 4) return null;
    const step = steps[0] + (px - area.left) / (area.right - area.left) * (steps[1] - steps[0]);
    const longest = series.reduce((a, b) => b.x.length > a.x.length ? b : a);
    const nearest = longest.x.reduce((a, b) => Math.abs(b - step) < Math.abs(a - step) ? b : a);
    cross.setAttribute("x1", across(nearest));
    cross.setAttribute("x2", across(nearest));
    cross.setAttribute("visibility", "visible");
    const lines = series.map((s) => [s, s.x.indexOf(nearest)]).filter(([, i]) => i >= 0).map(([s, i]) => `${s.name}  ${format(s.y[i])}`);
    const mark = marks.find((m) => m.x === nearest);
    return [`step ${nearest}`, ...lines, ...(mark ? [mark.label] : [])].join("\n");
  });
  return true;
}

// layers: [{name, colour, values}] in the order of stacking, each value valid from its time to the next one's.
function stackedArea(figure, times, layers, {end, budget, height = 230}) {
  const canvas = drawing(figure, height);
  const totals = times.map((_, i) => layers.reduce((sum, layer) => sum + layer.values[i], 0));
  const peak = Math.max(...totals);
  const inside = budget && budget <= 2.5 * peak;
  const {across, up, area} = plot(canvas, {range: [0, end], format: seconds, label: "time since the step before"}, {range: [0, inside ? 1.06 * Math.max(budget, peak) : (budget ? 1.16 : 1.06) * peak], format: bytes, binary: true});
  const edges = times.map((time) => Math.min(area.right, Math.max(area.left, across(time))));
  edges[0] = area.left;
  let base = times.map(() => 0);
  for (const layer of layers) {
    const top = base.map((b, i) => b + layer.values[i]);
    let path = "";
    times.forEach((_, i) => { path += `${i ? "L" : "M"}${edges[i].toFixed(1)} ${up(top[i]).toFixed(1)}H${(i + 1 < times.length ? edges[i + 1] : area.right).toFixed(1)}`; });
    for (let i = times.length - 1; i >= 0; i -= 1) path += `L${(i + 1 < times.length ? edges[i + 1] : area.right).toFixed(1)} ${up(base[i]).toFixed(1)}H${edges[i].toFixed(1)}`;
    canvas.add("path", {d: `${path}Z`, fill: layer.colour, opacity: 0.85});
    base = top;
  }
  if (inside) canvas.add("line", {class: "budget", x1: area.left, x2: area.right, y1: up(budget), y2: up(budget)});
  else if (budget) canvas.add("text", {class: "budget", x: area.right, y: area.top + 2, "text-anchor": "end"}, `budget ${bytes(budget)}, far above`);
  tip(canvas.svg, (px) => {
    if (px === null || px < area.left || px > area.right) return null;
    let at = edges.length - 1;
    while (at > 0 && edges[at] > px) at -= 1;
    const held = layers.filter((layer) => layer.values[at] > 0).reverse().map((layer) => `${layer.name}  ${bytes(layer.values[at])}`);
    return [`${seconds((px - area.left) / (area.right - area.left) * end)}: ${bytes(totals[at])}`, ...held].join("\n");
  });
}

// rows: [{name, parts: [{value, colour, hollow, label}]}]: bars below one another, values beside them.
function barChart(figure, rows, {format, labelWidth = 190, most, thick = 13}) {
  const parts = Math.max(...rows.map((row) => row.parts.length));
  const rowHeight = parts * (thick + 1) + 10;
  const canvas = drawing(figure, rows.length * rowHeight + 4);
  const highest = most || Math.max(...rows.flatMap((row) => row.parts.map((part) => part.value)));
  const right = canvas.width - 118;
  rows.forEach((row, r) => {
    const top = r * rowHeight + 4;
    canvas.add("text", {class: "strong", x: labelWidth - 10, y: top + parts * (thick + 1) / 2 + 4, "text-anchor": "end"}, row.name);
    row.parts.forEach((part, p) => {
      const y = top + p * (thick + 1), length = Math.max(1, (right - labelWidth) * part.value / highest);
      canvas.add("rect", {x: labelWidth, y: y + (part.hollow ? 1 : 0), width: length, height: thick - (part.hollow ? 2 : 0), rx: 2, fill: part.hollow ? "none" : part.colour, stroke: part.hollow ? part.colour : "none", "stroke-width": 1.5});
      canvas.add("text", {x: labelWidth + length + 7, y: y + thick - 2.5}, part.label || format(part.value));
    });
  });
  return canvas;
}

// rows: [{name, total, parts: [{name, value, colour}], rest}]: bars of parts in a row; what is left of `total` is hatched.
function stackedBars(figure, rows, {format, labelWidth = 130}) {
  const canvas = drawing(figure, rows.length * 42 + 40);
  const most = Math.max(...rows.map((row) => Math.max(row.total, row.parts.reduce((sum, part) => sum + part.value, 0))));
  const {width} = canvas, right = width - 70, across = linear([0, most], [labelWidth, right]);
  const pattern = canvas.add("defs", {});
  const hatch = document.createElementNS(NAMESPACE, "pattern");
  for (const [key, value] of Object.entries({id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"})) hatch.setAttribute(key, value);
  const stroke = document.createElementNS(NAMESPACE, "line");
  for (const [key, value] of Object.entries({x1: 0, x2: 0, y1: 0, y2: 6, stroke: "var(--soft)", "stroke-width": 1.5, opacity: 0.5})) stroke.setAttribute(key, value);
  hatch.append(stroke);
  pattern.append(hatch);
  const boxes = [];
  rows.forEach((row, r) => {
    const y = r * 42 + 4;
    canvas.add("text", {class: "strong", x: labelWidth - 12, y: y + 20, "text-anchor": "end"}, row.name);
    let sum = 0;
    const box = (part, fill, opacity) => {
      const left = across(sum), size = across(sum + part.value) - left;
      sum += part.value;
      canvas.add("rect", {x: left, y, width: Math.max(0.5, size), height: 30, fill, opacity, stroke: "var(--paper)", "stroke-width": 1});
      boxes.push({left, right: left + size, y, text: `${part.name}\n${format(part.value)}, ${percent(part.value / row.total)} of the step`});
      if (size > part.name.length * 6.6 + 8) canvas.add("text", {x: left + size / 2, y: y + 19, "text-anchor": "middle", style: "fill: var(--paper); font-size: 11px"}, part.name);
    };
    for (const part of row.parts) box(part, part.colour, part.opacity || 1);
    if (row.total - sum > row.total * 1e-3) {
      const part = {name: "waiting", value: row.total - sum};
      const left = across(sum), size = across(row.total) - left;
      box(part, "url(#hatch)", 1);
      if (size > 60) canvas.add("text", {class: "strong", x: left + size / 2, y: y + 19, "text-anchor": "middle", style: "font-size: 11px; paint-order: stroke; stroke: var(--paper); stroke-width: 4px"}, "waiting");
    }
    canvas.add("text", {class: "strong", x: across(Math.max(sum, row.total)) + 8, y: y + 20}, format(row.total));
  });
  const bottom = rows.length * 42 + 6;
  for (const value of ticks(0, most, 6)) canvas.add("text", {x: across(value), y: bottom + 14, "text-anchor": "middle"}, seconds(value));
  tip(canvas.svg, (px, py) => {
    const hit = px === null ? null : boxes.find((b) => px >= b.left && px < b.right && py >= b.y && py < b.y + 30);
    return hit ? hit.text : null;
  });
}

// values: [row][column] relative to 1; below 1 is blue, above orange, four times and more fully so.
function heatMap(figure, values, {rowName, columnName, rowLabel, columnLabel}) {
  const columns = Math.max(...values.map((row) => row.length));
  const width = Math.max(320, figure.clientWidth || 1000), left = 64, cell = (width - left - 12) / columns;
  const tall = Math.max(9, Math.min(26, cell, 560 / values.length));
  const canvas = drawing(figure, values.length * tall + 44, width);
  const gap = cell > 6 && tall > 6 ? 1 : 0;
  values.forEach((row, r) => row.forEach((value, c) => {
    const strength = value < 1 ? 1 - value : Math.min(1, Math.log2(value) / 2);
    const rect = canvas.add("rect", {x: left + c * cell, y: r * tall, width: cell - gap, height: tall - gap, fill: value < 1 ? "var(--blue)" : "var(--orange)", opacity: (0.06 + 0.94 * strength).toFixed(2)});
    if (value === 0) rect.setAttribute("data-empty", "");
  }));
  const every = Math.max(1, Math.ceil(14 / tall));
  values.forEach((_, r) => { if (r % every === 0) canvas.add("text", {x: left - 8, y: (r + 0.5) * tall + 4, "text-anchor": "end"}, rowName(r)); });
  const bottom = values.length * tall;
  for (const c of ticks(0, columns - 1, Math.min(columns, 16), {whole: true})) canvas.add("text", {x: left + (c + 0.5) * cell, y: bottom + 16, "text-anchor": "middle"}, c);
  canvas.add("text", {x: width - 12, y: bottom + 34, "text-anchor": "end"}, columnLabel);
  canvas.add("text", {x: left, y: bottom + 34}, rowLabel);
  tip(canvas.svg, (px, py) => {
    if (px === null) return null;
    const c = Math.floor((px - left) / cell), r = Math.floor(py / tall);
    return r >= 0 && r < values.length && c >= 0 && c < values[r].length ? columnName(r, c) : null;
  });
}

// A strip that says what the colours of the heat map mean.
function heatLegend(figure) {
  const cell = 11;
  const canvas = drawing(figure, 38, 520);
  canvas.svg.style.maxWidth = "520px";
  const steps = 40;
  for (let i = 0; i < steps; i += 1) {
    const value = i < steps / 2 ? i / (steps / 2) : 2 ** ((i - steps / 2) / (steps / 2) * 2);
    const strength = value < 1 ? 1 - value : Math.min(1, Math.log2(value) / 2);
    canvas.add("rect", {x: 64 + i * cell, y: 2, width: cell, height: 12, fill: value < 1 ? "var(--blue)" : "var(--orange)", opacity: 0.06 + 0.94 * strength});
  }
  for (const [at, text] of [[0, "no tokens"], [20, "the layer's mean"], [30, "2x"], [40, "4x and more"]]) {
    canvas.add("text", {x: 64 + at * cell, y: 28, "text-anchor": at === 0 ? "start" : at === 40 ? "end" : "middle"}, text);
  }
}
