// Makes elements and formats numbers. The model's text only becomes text nodes and attribute values.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of (children || []).flat(Infinity)) {
    if (child !== undefined && child !== null && child !== "") node.append(child);
  }
  return node;
}
const element = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const shape = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const known = (value) => value !== null && value !== undefined;
function digits(value, count = 3) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 4));
}
function time(us) {
  if (!known(us)) return "–";
  if (us >= 1e6) return `${digits(us / 1e6)} s`;
  return us >= 1000 ? `${digits(us / 1000)} ms` : `${digits(us)} µs`;
}
function bytes(count) {
  if (!known(count)) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < 4) { count /= 1000; unit += 1; }
  return `${unit ? digits(count) : count} ${units[unit]}`;
}
function percent(part) {
  if (!known(part)) return "–";
  return `${(100 * part).toFixed(part && part < 0.0995 ? 1 : 0)}%`;
}
function operations(flops) {
  if (!flops) return "not counted";
  for (const [size, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "K"]]) {
    if (flops >= size) return `${digits(flops / size)} ${name}FLOP`;
  }
  return `${flops} FLOP`;
}
const facts = (pairs) => element("dl", { class: "facts" },
  pairs.filter(([, value]) => known(value) && value !== "").map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
const boundKind = (work) => (["", "compute"].includes(work.bound) ? work.bound : "memory");
// Text breaks at spaces; a name that is longer than a line breaks behind "_".
const word = (text) => element("span", { class: "word" }, text.split(/(?<=_)/).flatMap((part, place) => (place ? [element("wbr"), part] : [part])));
const code = (text) => element("code", {}, String(text).split(/( )/).map((part) => (part.includes("_") ? word(part) : part)));
// A text with `code` in it.
const marked = (text) => text.split("`").map((part, place) => (place % 2 ? code(part) : part));

const tip = byId("tip");
function tipFor(node, text) {
  const show = (x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(x + 12, innerWidth - width - 8))}px`;
    tip.style.top = `${y + 14 + height > innerHeight ? y - height - 10 : y + 14}px`;
  };
  node.addEventListener("pointermove", (event) => show(event.clientX, event.clientY));
  node.addEventListener("focus", () => { const at = node.getBoundingClientRect(); show(at.right, at.bottom); });
  for (const name of ["pointerleave", "blur", "pointerdown"]) node.addEventListener(name, () => { tip.hidden = true; });
}
const regionOf = (number) => data.regions[number];
