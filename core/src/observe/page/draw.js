"use strict";
// Elements, numbers with units, scales, axes, and the box that follows the pointer. Text is always set as text, never as markup.
const NAMESPACE = document.getElementById("namespace").namespaceURI;
const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawing(figure, height, width = Math.max(320, figure.clientWidth || 1000)) {
  const svg = document.createElementNS(NAMESPACE, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  const caption = figure.querySelector("figcaption");
  if (caption) svg.setAttribute("aria-label", caption.textContent);
  figure.append(svg);
  const add = (name, attributes, text) => {
    const made = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    svg.append(made);
    return made;
  };
  return {svg, add, width, height};
}

function missing(figure, sentence) {
  const note = element("p", {class: "missing"});
  // `key` in a sentence stands in the fixed-width font.
  sentence.split("`").forEach((part, i) => note.append(i % 2 ? element("code", {}, part) : part));
  figure.append(note);
}

function legend(figure, entries) {
  const list = element("div", {class: "legend"});
  for (const {name, colour, style} of entries) list.append(element("span", {style: `--swatch: ${colour}`, class: style || ""}, name));
  figure.append(list);
}

const colour = (name) => `var(--${name})`;

// Numbers.
function significant(value, digits = 3) {
  if (value === null || value === undefined || !isFinite(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
  return String(Number(value.toPrecision(Math.max(digits, Math.floor(Math.log10(size)) + 1))));
}
function scaled(value, steps, base) {
  let unit = 0;
  while (unit + 1 < steps.length && Math.abs(value) >= base) { value /= base; unit += 1; }
  return `${significant(value)} ${steps[unit]}`.trim();
}
const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const count = (value) => scaled(value, ["", "K", "M", "G"], 1000).replace(" ", "");
const large = (value) => scaled(value, ["", "thousand", "million", "billion", "trillion"], 1000);
function seconds(value) {
  const size = Math.abs(value);
  if (size >= 100 || size === 0) return `${significant(value)} s`;
  return size >= 1 ? `${significant(value)} s` : size >= 1e-3 ? `${significant(value * 1e3)} ms` : `${significant(value * 1e6)} µs`;
}
const percent = (share) => `${significant(share * 100, share < 0.1 ? 2 : 3)} %`;
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

// Scales.
const extent = (values) => values.reduce(([low, high], v) => v === null || !isFinite(v) ? [low, high] : [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
const linear = ([from, to], [left, right]) => (value) => left + (right - left) * (to === from ? 0.5 : (value - from) / (to - from));

// Round values from `low` to `high`, about `wanted` of them; whole numbers only when `whole`. Bytes are round in powers of two.
function ticks(low, high, wanted, {whole = false, binary = false} = {}) {
  if (!(high > low)) return [low];
  const raw = (high - low) / wanted;
  let step;
  if (binary) {
    const unit = 2 ** (10 * Math.floor(Math.log2(raw) / 10));
    step = unit * ([1, 2, 5, 10, 20, 50, 100, 200, 500, 1024].find((m) => m * unit >= raw) || 1024);
  } else {
    const unit = 10 ** Math.floor(Math.log10(raw));
    step = unit * [1, 2, 5, 10].find((m) => m * unit >= raw * 0.999);
  }
  if (whole) step = Math.max(1, Math.round(step));
  const values = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) values.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return values;
}

// The box beside the pointer.
function tip(svg, describe) {
  const box = byId("tip");
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / frame.width;
    const text = describe((event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale);
    box.hidden = !text;
    if (!text) return;
    box.textContent = text;
    const left = event.pageX + 16, room = document.documentElement.clientWidth - box.offsetWidth - 8;
    box.style.left = `${left > room ? Math.max(4, event.pageX - box.offsetWidth - 16) : left}px`;
    box.style.top = `${event.pageY + 14}px`;
  });
  svg.addEventListener("pointerleave", () => { box.hidden = true; describe(null, null); });
}
