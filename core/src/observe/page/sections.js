// The page itself: every section from the data beside it, or the sentence that says what is missing and which key records it.
const data = JSON.parse(byId("data").textContent);
const run = data.run || {};
const metrics = data.metrics || {step: []};
const predicted = run.predicted || null;
const column = (name) => metrics[name] || metrics.step.map(() => null);
const last = (values) => values.reduce((kept, value) => value === null || value === undefined ? kept : value, null);
const median = (values) => { const sorted = values.filter((v) => v !== null && isFinite(v)).sort((a, b) => a - b); return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null; };
const sentence = (id) => data.missing[id];

// Draws into a figure, or says why there is nothing to draw. A part that fails leaves the others alone.
function show(id, missingId, draw) {
  const figure = byId(id);
  try {
    if (draw(figure) !== false) return;
  } catch (error) {
    figure.append(element("p", {class: "missing"}, `This part could not be drawn: ${error.message}`));
    return;
  }
  missing(figure, sentence(missingId) || "Nothing was recorded.");
}

const MARKS = [...(data.starts || []).map((x) => ({x, label: `resumed after step ${x}`})), ...(data.checkpoints || []).map(({step, name}) => ({x: step, label: `checkpoint ${name}`}))];
const line = (name, colourName, more = {}) => ({name, x: metrics.step, y: column(name), low: (data.low || {})[name], high: (data.high || {})[name], colour: colour(colourName), ...more});
const throughput = metrics.step.map((_, i) => column("step_seconds")[i] > 0 ? column("tokens")[i] / column("step_seconds")[i] : null);
// The first steps warm up.
const settled = (values) => values.slice(Math.min(Math.floor(values.length / 4), 20));

function header() {
  const {name, text} = data.state;
  const tone = {done: "good", running: "blue", interrupted: "warn"}[name] || "bad";
  byId("state").append(element("span", {class: `pill ${tone}`}, name), text);
  if (run.model) byId("subject").textContent = `${run.model.family} of ${large(run.model.parameters)} parameters, ${plural(run.plan.ranks, "rank")} on ${run.plan.device}`;
  for (const note of data.notes) byId("notes").append(element("li", {}, note));
  const figures = byId("figures");
  const figure = (label, value, below) => { if (value && value !== "-") figures.append(element("div", {}, element("dt", {}, label), element("dd", {}, value), ...(below ? [element("dd", {}, below)] : []))); };
  const loss = column("loss");
  const recent = loss.slice(-Math.max(1, Math.min(10, Math.floor(loss.length / 4)))).filter((v) => v !== null);
  if (recent.length) figure("Loss", significant(recent.reduce((a, b) => a + b, 0) / recent.length, 4), recent.length > 1 ? `mean of the last ${recent.length} points; began at ${significant(loss[0], 4)}` : `began at ${significant(loss[0], 4)}`);
  if (data.evaluation) figure("Held-out loss", significant(last(data.evaluation.loss), 4), `after step ${last(data.evaluation.step)}`);
  const typical = median(settled(throughput));
  if (typical) figure("Tokens a second", count(typical), "median after the warm-up");
  const step = median(settled(column("step_seconds")));
  if (step) figure("Step", seconds(step), predicted ? `predicted ${seconds(predicted.step_seconds)}, bound by ${predicted.bound_by}` : null);
  const gpus = Object.keys(metrics).filter((key) => key.startsWith("gpu_peak_bytes/"));
  const places = run.memory || [];
  if (gpus.length) {
    const peak = Math.max(...gpus.map((key) => last(column(key)) || 0));
    const budgets = places.filter((p) => p.place.startsWith("gpu") && p.budget_bytes).map((p) => p.budget_bytes);
    figure(gpus.length > 1 ? "Device memory, highest" : "Device memory", bytes(peak), budgets.length ? `of ${bytes(Math.min(...budgets))}` : "no budget of its own");
  }
  const host = extent(column("host_bytes"))[1];
  const hostBudget = places.filter((p) => p.place.startsWith("numa") && p.budget_bytes).reduce((sum, p) => sum + p.budget_bytes, 0);
  if (isFinite(host)) figure("Host memory", bytes(host), hostBudget ? `of ${bytes(hostBudget)}` : null);
}

function training() {
  show("loss", "metrics", (figure) => {
    const series = [line("loss", "blue", {name: "training", smooth: true, y: column("loss"), low: (data.low || {}).loss, high: (data.high || {}).loss})];
    if (data.evaluation) series.push({name: "held out", x: data.evaluation.step, y: data.evaluation.loss, colour: colour("orange"), dots: true});
    const drawn = lineChart(figure, series, {marks: MARKS, height: 300});
    if (drawn && !data.evaluation && sentence("evaluation")) missing(figure, sentence("evaluation"));
    return drawn;
  });
  show("learning-rate", "metrics", (figure) => lineChart(figure, [line("learning_rate", "teal")], {zero: true, height: 210}));
  show("gradient-norm", "metrics", (figure) => lineChart(figure, [line("grad_norm", "purple", {smooth: true})], {zero: true, height: 210}));
}

// Seconds by kind on the compute lane of one rank, in the order of a step; within a phase the kinds predicted to take longest come first.
function computeParts(kinds, ranks) {
  const size = new Map(predicted.kinds.map((k) => [k.kind, k.seconds]));
  const order = PHASES.map((phase) => phase.name);
  const shades = {};
  return kinds.filter((k) => k.lane === "compute" && k.seconds > 0).map((k) => ({name: k.kind, value: k.seconds / ranks, phase: phaseOf(k.kind)}))
    .sort((a, b) => order.indexOf(a.phase.name) - order.indexOf(b.phase.name) || (size.get(b.name) || 0) - (size.get(a.name) || 0) || a.name.localeCompare(b.name))
    .map((part) => {
      shades[part.phase.name] = (shades[part.phase.name] || 0) + 1;
      return {...part, colour: part.phase.colour, opacity: Math.max(0.45, 1.12 - 0.16 * shades[part.phase.name])};
    });
}

function speed() {
  show("throughput", "metrics", (figure) => lineChart(figure, [{name: "tokens/s", x: metrics.step, y: throughput, colour: colour("green"), smooth: true}], {format: count, zero: true, height: 230}));
  show("step-time", "metrics", (figure) => {
    const series = [line("step_seconds", "blue", {name: "measured", smooth: true})];
    if (predicted && metrics.step.length) series.push({name: "predicted", x: [metrics.step[0], metrics.step[metrics.step.length - 1]], y: [predicted.step_seconds, predicted.step_seconds], colour: colour("orange"), style: "dashed"});
    return lineChart(figure, series, {format: seconds, zero: true, height: 230});
  });
  const traced = data.trace ? data.trace.steps : data.stage_kinds ? [data.stage_kinds] : [];
  show("step-kinds", "run", (figure) => {
    if (!predicted) return false;
    const ranks = run.plan.ranks;
    const secondsOf = (step) => { const at = metrics.step.indexOf(step.step); return at >= 0 && !data.low ? column("step_seconds")[at] : step.seconds; };
    const shown = traced.length > 4 ? [traced[0], ...traced.slice(-3)] : traced;
    const rows = [{name: "predicted", total: predicted.step_seconds, parts: computeParts(predicted.kinds, ranks)},
                  ...shown.map((step) => ({name: `step ${step.step}`, total: secondsOf(step), parts: computeParts(step.kinds, ranks)}))];
    phaseLegend(figure, rows.flatMap((row) => row.parts.map((part) => part.name)));
    stackedBars(figure, rows, {format: seconds});
    if (!traced.length) missing(figure, sentence("stage_kinds"));
    return true;
  });
  show("kinds", "run", (figure) => {
    if (!predicted) return false;
    const measured = traced.length ? traced[traced.length - 1] : null;
    const key = (k) => `${k.lane} ${k.kind}`;
    const table = new Map(predicted.kinds.map((k) => [key(k), {...k, predicted: k.seconds, measured: null}]));
    for (const k of measured ? measured.kinds : []) table.set(key(k), {...(table.get(key(k)) || {...k, predicted: 0}), measured: k.seconds});
    const rows = [...table.values()].sort((a, b) => Math.max(b.predicted, b.measured || 0) - Math.max(a.predicted, a.measured || 0));
    const shown = rows.slice(0, 16).filter((row) => Math.max(row.predicted, row.measured || 0) > 0);
    legend(figure, [{name: "predicted", colour: colour("grey"), style: "hollow"}, ...(measured ? [{name: `measured in step ${measured.step}`, colour: colour("grey")}] : [])]);
    barChart(figure, shown.map((row) => {
      const shade = phaseOf(row.kind).colour;
      const parts = [{value: row.predicted, colour: shade, hollow: true}];
      if (measured) parts.push({value: row.measured || 0, colour: shade});
      return {name: `${row.kind} (${row.lane})`, parts};
    }), {format: seconds, labelWidth: 240});
    const rest = rows.slice(16);
    if (rest.length) figure.append(element("p", {class: "hint"}, `${plural(rest.length, "more kind")} of stage took ${seconds(rest.reduce((sum, row) => sum + (measured ? row.measured || 0 : row.predicted), 0))} together.`));
    if (!measured) missing(figure, sentence("stage_kinds"));
    return true;
  });
}

const CLASS_COLOURS = {fixed: "grey", state: "blue", working_weight: "teal", gradient: "pink", boundary: "brown", retained: "purple", result: "yellow", staging: "green", workspace: "orange"};
const className = (name) => ({working_weight: "working weights", gradient: "gradients", boundary: "boundaries", result: "results"}[name] || name);

function memory() {
  const places = run.memory || [];
  const home = byId("places");
  if (!places.length) missing(home, sentence("run"));
  else {
    const used = Object.keys(CLASS_COLOURS).filter((name) => places.some((place) => place.classes.includes(name)));
    legend(home, [...used.map((name) => ({name: className(name), colour: colour(CLASS_COLOURS[name])})), {name: "budget", colour: colour("bad"), style: "dashed"}]);
    const grid = element("div", {class: "places"});
    home.append(grid);
    // Beyond a few GPUs, those that hold the same are drawn once.
    const alike = (a, b) => a.place.slice(0, 3) === b.place.slice(0, 3) && Math.abs(a.peak_bytes - b.peak_bytes) < 0.005 * a.peak_bytes && a.budget_bytes === b.budget_bytes;
    const shown = places.length <= 6 ? places : places.filter((place, p) => places.findIndex((other) => alike(other, place)) === p);
    const figures = shown.map((place) => {
      const figure = element("figure", {id: `memory-${place.place.replace(" ", "-")}`});
      grid.append(figure);
      return figure;
    });
    // All are there before the first is drawn: only then are they as wide as they will be.
    shown.forEach((place, p) => {
      const budget = place.budget_bytes ? place.budget_bytes - (place.headroom_bytes || 0) : null;
      const name = place.place.startsWith("gpu") ? `${run.plan.device === "cuda" ? "GPU" : "Device memory of rank"} ${place.place.slice(4)}` : `NUMA node ${place.place.slice(5)}`;
      const of = budget ? ` of ${bytes(budget)}${place.headroom_bytes ? `, ${bytes(place.headroom_bytes)} of headroom taken off` : ""}` : "; no budget of its own";
      const figure = figures[p];
      const others = places.filter((other) => !shown.includes(other) && alike(place, other)).map((other) => other.place.replace(/\D/g, ""));
      figure.append(element("figcaption", {}, name, element("small", {}, `peak ${bytes(place.peak_bytes)}${of}`)));
      const flat = !place.times.length;
      // What never changes lies at the bottom.
      const spread = place.classes.map((_, c) => flat ? 0 : Math.max(...place.bytes.map((row) => row[c])) - Math.min(...place.bytes.map((row) => row[c])));
      const order = place.classes.map((_, c) => c).sort((a, b) => spread[a] - spread[b]);
      const layers = order.map((c) => ({name: className(place.classes[c]), colour: colour(CLASS_COLOURS[place.classes[c]] || "grey"), values: flat ? [place.at_peak[c]] : place.bytes.map((row) => row[c])}));
      stackedArea(figure, flat ? [0] : place.times, layers, {end: predicted.step_seconds, budget});
      if (others.length) figure.append(element("p", {class: "hint"}, `Within half a percent the same: ${others.join(", ")}.`));
      if (place.peak_stage) figure.append(element("p", {class: "hint"}, `Highest during ${place.peak_stage}.`));
    });
  }
  show("memory-measured", "metrics", (figure) => {
    const gpus = Object.keys(metrics).filter((key) => key.startsWith("gpu_peak_bytes/"));
    const shades = ["blue", "teal", "green", "purple", "pink", "brown", "yellow", "grey"];
    const series = gpus.map((key, i) => line(key, shades[i % shades.length], {name: `device ${key.split("/")[1]}`, style: i % 2 ? "dashed" : ""}));
    return lineChart(figure, [...series, line("host_bytes", "orange", {name: "host"})], {format: bytes, zero: true, height: 220, binary: true});
  });
}

function experts() {
  const load = data.expert_load;
  show("load", "expert_load", (figure) => {
    if (!load) return false;
    const routed = load.tokens.map((row, layer) => ({layer, row, mean: row.reduce((a, b) => a + b, 0) / row.length})).filter(({mean}) => mean > 0);
    if (!routed.length) return false;
    byId("load-step").textContent = `step ${load.step}, relative to the mean of the layer`;
    heatLegend(figure);
    heatMap(figure, routed.map(({row, mean}) => row.map((tokens) => tokens / mean)), {
      rowName: (r) => routed[r].layer, rowLabel: "layer", columnLabel: "expert",
      columnName: (r, c) => `layer ${routed[r].layer}, expert ${c}\n${routed[r].row[c]} choices, ${significant(routed[r].row[c] / routed[r].mean)} times the mean`});
    const idle = routed.reduce((sum, {row}) => sum + row.filter((tokens) => tokens === 0).length, 0);
    const busiest = routed.map(({layer, row, mean}) => [Math.max(...row) / mean, layer]).sort((a, b) => b[0] - a[0])[0];
    figure.append(element("p", {class: "hint"}, `The busiest expert of layer ${busiest[1]} has ${significant(busiest[0])} times its layer's mean; ${idle} of ${routed.length * routed[0].row.length} experts had no token in this step.`));
    return true;
  });
  show("balance", "expert_load", (figure) => {
    if (!load || load.history.length < 2) { figure.hidden = Boolean(load); return load ? true : false; }
    const x = load.history.map((record) => record.step);
    return lineChart(figure, [
      {name: "least balanced layer", x, y: load.history.map((r) => Math.max(...r.ratios)), colour: colour("orange"), dots: true},
      {name: "median layer", x, y: load.history.map((r) => median(r.ratios)), colour: colour("blue"), dots: true}], {zero: true, height: 210});
  });
}

function lanes() {
  show("lanes", "trace", (figure) => {
    if (!data.trace) return false;
    byId("lanes-step").textContent = `step ${data.trace.step}`;
    timeline(figure, data.trace);
    return true;
  });
}

function bounds() {
  show("path", "run", (figure) => {
    if (!predicted || !predicted.critical_path.length) return false;
    const path = predicted.critical_path;
    phaseLegend(figure, path.map((link) => link.kind));
    const canvas = drawing(figure, 74), end = path[path.length - 1].end, begin = Math.min(0, path[0].start);
    const across = linear([begin, end], [4, canvas.width - 12]);
    for (const link of path) canvas.add("rect", {x: across(link.start), y: 6, width: Math.max(0.8, across(link.end) - across(link.start) - 0.5), height: 30, fill: phaseOf(link.kind).colour, opacity: link.lane === "compute" ? 1 : 0.6});
    for (const value of ticks(begin, end, 7)) canvas.add("text", {x: across(value), y: 54, "text-anchor": value >= end * 0.97 ? "end" : "middle"}, seconds(value));
    tip(canvas.svg, (px, py) => {
      const link = px === null || py > 40 ? null : path.find((l) => px >= across(l.start) - 1 && px <= across(l.end) + 1);
      if (!link) return null;
      const layers = link.first_layer < 0 ? "" : link.first_layer === link.last_layer ? `, layer ${link.first_layer}` : `, layers ${link.first_layer} to ${link.last_layer}`;
      return `${link.kind} (${link.lane})${layers}\n${plural(link.stages, "stage")}, ${seconds(link.end - link.start)}`;
    });
    const sums = new Map();
    for (const link of path) {
      const name = `${link.kind} (${link.lane})`;
      sums.set(name, {kind: link.kind, value: (sums.has(name) ? sums.get(name).value : 0) + link.end - link.start});
    }
    const rows = [...sums].sort((a, b) => b[1].value - a[1].value).slice(0, 6);
    barChart(figure, rows.map(([name, {kind, value}]) => ({name, parts: [{value, colour: phaseOf(kind).colour, label: `${seconds(value)}, ${percent(value / predicted.step_seconds)}`}]})), {format: seconds, labelWidth: 240});
    return true;
  });
  show("waits", "run", (figure) => {
    if (!predicted) return false;
    const rows = predicted.waits.filter((wait) => wait.seconds > 1e-3 * predicted.step_seconds).slice(0, 8);
    if (!rows.length) {
      figure.append(element("p", {class: "hint"}, "None longer than a thousandth of the step."));
      return true;
    }
    const all = predicted.waits.reduce((sum, wait) => sum + wait.seconds, 0);
    figure.append(element("p", {class: "hint"}, `${seconds(all)} in all, ${percent(all / predicted.step_seconds)} of the step.`));
    barChart(figure, rows.map((wait) => ({name: `${wait.kind} (${wait.lane})`, parts: [{value: wait.seconds, colour: phaseOf(wait.kind).colour, label: `${seconds(wait.seconds)}, ${percent(wait.seconds / predicted.step_seconds)}`}]})), {format: seconds, labelWidth: 200});
    return true;
  });
  show("resources", "run", (figure) => {
    if (!predicted || !predicted.resources.length) return false;
    const rows = predicted.resources.filter((use) => use.share > 0.002).slice(0, 8);
    barChart(figure, rows.map((use) => ({name: use.name, parts: [{value: use.share, colour: colour("blue"), label: percent(use.share)}]})), {format: percent, most: Math.max(1, ...rows.map((use) => use.share)), labelWidth: 170});
    return true;
  });
}

function setup() {
  const cards = byId("cards");
  const card = (title, entries, note) => {
    const list = element("dl", {});
    for (const [name, value] of entries) if (value !== null && value !== undefined && value !== "") list.append(element("dt", {}, name), element("dd", {}, String(value)));
    cards.append(element("div", {}, element("h3", {}, title), list, ...(note ? [element("p", {}, note)] : [])));
  };
  const [reason, ...table] = data.run ? run.plan.evidence.split("\n") : [];
  if (!data.run) missing(cards, sentence("run"));
  else {
    const {plan, model, machine} = run;
    card("Model", [["family", model.family], ["parameters", model.parameters.toLocaleString("en")], ["layers", model.layers], ["experts", model.experts ? `${model.experts}, ${model.top_k} a token` : "none"], ["folder", model.path]]);
    const resident = plan.resident_layers.length;
    card("Plan", [["experts", plan.experts], ["activations", plan.activations], ["ranks", `${plan.ranks} on ${plan.device}, ${plural(plan.numa_nodes, "NUMA node")}`], ["batch", `${plan.global_batch} sequences of ${plan.sequence_length} tokens`], ["compute", plan.compute],
                  ["deferred updates", plural(plan.deferred_layers, "layer")], ["resident", `${plural(resident, "layer")}${{embedding: " and the embedding", all: " and ordinary parameters"}[plan.resident_ordinary] ?? ""}`], ["streamed weights", plan.cached_weights ? "cached on the host" : "converted at each delivery"], ["costs", plan.calibration]], `Chosen: ${reason}.`);
    card("Budgets", run.memory.map((place) => [place.place, place.budget_bytes ? `${bytes(place.peak_bytes)} of ${bytes(place.budget_bytes)}` : `${bytes(place.peak_bytes)}, no budget of its own`]));
    card("Machine", [["name", machine.name], ...machine.gpus.map((gpu, i) => [`GPU ${i}`, `${gpu.name}, ${bytes(gpu.memory_bytes)}`]), ...machine.numa_nodes.map((node, i) => [`NUMA node ${i}`, `${plural(node.cores, "core")}, ${bytes(node.memory_bytes)}`])]);
    card("Versions", Object.entries(run.versions));
  }
  const lost = data.run && run.plan.runners_up || [];
  const gains = data.run && run.plan.budget_gains || [];
  const lostText = lost.map((each) => `${each.why}${each.step_seconds ? ` (${seconds(each.step_seconds)})` : ""}: ${each.difference || "the same"}`).join("\n");
  // Faster or not is known of none: what does not fit is not simulated.
  const gainsText = [...gains.map((each) => `With ${each.budget} this would fit too: ${each.difference}`), "How much faster plans under larger budgets are: oom plan CONFIG --explain"].join("\n");
  for (const [id, text] of [["lost-text", lostText], ["gains-text", lost.length ? gainsText : null], ["evidence-text", table.length ? table.join("\n") : null], ["plan-text", data.plan_toml], ["config-text", data.config_toml]]) {
    if (text) byId(id).textContent = text;
    else byId(id).parentElement.hidden = true;
  }
}

for (const part of [header, training, speed, memory, experts, lanes, bounds, setup]) {
  try {
    part();
  } catch (error) {
    byId("notes").append(element("li", {}, `A part of this page could not be drawn: ${error.message}`));
  }
}
// A printer shows what is folded, too.
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
