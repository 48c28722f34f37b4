// The lanes of a traced step: predicted over measured, one row a lane. Drag moves, the buttons and ctrl with the wheel change the scale.

// What a stage is for, which is what its colour says.
const PHASES = [
  {name: "forward", colour: colour("blue"), of: (kind) => /forward|head_and_loss|^loss$|embedding_forward/.test(kind)},
  {name: "replay", colour: colour("purple"), of: (kind) => /replay|regenerat|rebuilt?/.test(kind)},
  {name: "backward", colour: colour("orange"), of: (kind) => /backward/.test(kind)},
  {name: "update", colour: colour("green"), of: (kind) => /update/.test(kind)},
  {name: "weights", colour: colour("teal"), of: (kind) => /weights|prepare|publish|convert/.test(kind)},
  {name: "gradients", colour: colour("pink"), of: (kind) => /gradient/.test(kind)},
  {name: "activations", colour: colour("brown"), of: (kind) => /boundary|result|keep|store|load|dispatch|return|counts|pack|combine|order/.test(kind)},
  {name: "other", colour: colour("grey"), of: () => true},
];
// Replays and backwards of something come before forwards of it.
const PHASE_ORDER = ["replay", "backward", "forward", "update", "weights", "gradients", "activations", "other"].map((name) => PHASES.find((phase) => phase.name === name));
const phaseOf = (kind) => PHASE_ORDER.find((phase) => phase.of(kind));
const phaseLegend = (figure, kinds) => legend(figure, PHASES.filter((phase) => kinds.some((kind) => phaseOf(kind) === phase)));

const LANES = ["compute", "comm", "h2d", "d2h", "d2h_expert", "issue", "prepare", "update"];

function timeline(figure, trace) {
  // Lanes that have work, rank by rank.
  const busy = trace.lanes.map((lane, index) => ({...lane, index})).filter(({index}) => trace.measured.some((s) => s[0] === index) || trace.predicted.some((s) => s[0] === index));
  busy.sort((a, b) => (a.place.startsWith("rank") ? 0 : 1) - (b.place.startsWith("rank") ? 0 : 1) || a.place.localeCompare(b.place, undefined, {numeric: true}) || LANES.indexOf(a.lane) - LANES.indexOf(b.lane));
  const places = [...new Set(busy.map((lane) => lane.place))];
  const rowHeight = 31, placeHeight = 24, left = 96;
  let y = 4;
  const rows = [];
  const heads = [];
  for (const place of places) {
    heads.push({place, y});
    y += placeHeight;
    for (const lane of busy.filter((l) => l.place === place)) {
      rows.push({...lane, y, predicted: trace.predicted.filter((s) => s[0] === lane.index), measured: trace.measured.filter((s) => s[0] === lane.index)});
      y += rowHeight;
    }
  }
  const kinds = [...new Set([...trace.measured, ...trace.predicted].map((s) => trace.kinds[s[1]]))];
  phaseLegend(figure, kinds);
  const canvas = drawing(figure, y + 40);
  const all = [...trace.measured, ...trace.predicted];
  const whole = [Math.min(...all.map((s) => s[3])), Math.max(...all.map((s) => s[3] + s[4]))];
  let view = [...whole];
  const right = canvas.width - 12;

  const phases = trace.kinds.map((kind) => PHASES.indexOf(phaseOf(kind)));
  function bars(stages, top, height, opacity) {
    const paths = PHASES.map(() => "");
    const across = linear(view, [left, right]);
    for (const [, kind, , start, size] of stages) {
      if (start + size < view[0] || start > view[1]) continue;
      const from = Math.max(left, across(start)), to = Math.min(right, across(start + size));
      paths[phases[kind]] += `M${from.toFixed(1)} ${top}h${Math.max(0.6, to - from - (to - from > 3 ? 0.6 : 0)).toFixed(1)}v${height}H${from.toFixed(1)}z`;
    }
    paths.forEach((path, p) => { if (path) canvas.add("path", {d: path, fill: PHASES[p].colour, opacity}); });
  }
  function draw() {
    canvas.svg.replaceChildren();
    const across = linear(view, [left, right]);
    for (const value of ticks(...view, Math.floor(canvas.width / 130))) {
      canvas.add("line", {class: "grid", x1: across(value), x2: across(value), y1: 4, y2: y});
      canvas.add("text", {x: across(value), y: y + 16, "text-anchor": "middle"}, seconds(value / 1e3));
    }
    canvas.add("text", {x: right, y: y + 34, "text-anchor": "end"}, "time from the first stage on");
    for (const head of heads) canvas.add("text", {class: "strong", x: 0, y: head.y + 17, style: "font-weight: 600"}, head.place);
    for (const row of rows) {
      canvas.add("text", {x: left - 8, y: row.y + 17, "text-anchor": "end"}, row.lane);
      bars(row.predicted, row.y, 9, 0.5);
      bars(row.measured, row.y + 10, 15, 1);
    }
  }
  draw();

  const timeAt = (px) => view[0] + (px - left) / (right - left) * (view[1] - view[0]);
  function zoom(factor, around) {
    const size = Math.min(whole[1] - whole[0], Math.max((whole[1] - whole[0]) / 5000, (view[1] - view[0]) * factor));
    const begin = Math.min(whole[1] - size, Math.max(whole[0], around - (around - view[0]) / (view[1] - view[0]) * size));
    view = [begin, begin + size];
    draw();
  }
  tip(canvas.svg, (px, py) => {
    if (px === null || px < left) return null;
    const row = rows.find((r) => py >= r.y && py < r.y + 26);
    if (!row) return null;
    const time = timeAt(px), slack = (view[1] - view[0]) / (right - left) * 1.5;
    const predicted = py < row.y + 10, stages = predicted ? row.predicted : row.measured;
    const hit = stages.find((s) => time >= s[3] - slack && time <= s[3] + s[4] + slack);
    if (!hit) return null;
    return `${trace.kinds[hit[1]]}${hit[2] >= 0 ? `, layer ${hit[2]}` : ""}\n${predicted ? "predicted" : "measured"} ${seconds(hit[4] / 1e3)}, from ${seconds(hit[3] / 1e3)} on`;
  });
  let held = null;
  const px = (event) => (event.clientX - canvas.svg.getBoundingClientRect().left) * canvas.width / canvas.svg.getBoundingClientRect().width;
  canvas.svg.addEventListener("pointerdown", (event) => { held = {px: px(event), view: [...view]}; canvas.svg.setPointerCapture(event.pointerId); });
  canvas.svg.addEventListener("pointerup", () => { held = null; });
  canvas.svg.addEventListener("pointermove", (event) => {
    if (!held) return;
    const size = held.view[1] - held.view[0];
    const begin = Math.min(whole[1] - size, Math.max(whole[0], held.view[0] - (px(event) - held.px) / (right - left) * size));
    view = [begin, begin + size];
    draw();
  });
  canvas.svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(px(event)));
  }, {passive: false});

  const hint = element("p", {class: "hint"}, "Thin and pale: predicted; below it: measured.");
  for (const [text, act] of [["closer", () => zoom(0.5, (view[0] + view[1]) / 2)], ["farther", () => zoom(2, (view[0] + view[1]) / 2)], ["whole step", () => { view = [...whole]; draw(); }]]) {
    const button = element("button", {type: "button"}, text);
    button.addEventListener("click", act);
    hint.append(button);
  }
  figure.append(hint);
}
