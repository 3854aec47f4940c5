// Operations a second by operations per byte, on logarithmic axes.
const PLOT = { width: 960, height: 430, left: 62, right: 18, top: 18, bottom: 46 };
let points = [];
function drawRoofline() {
  byId("roofline-view").replaceChildren();
  points = [];
  PLOT.width = Math.max(300, byId("roofline-view").clientWidth);
  const limits = data.limits;
  const rows = data.kernels.filter((row) => known(row.work.gflops) && row.work.nbytes);
  if (!limits || !rows.length) {
    byId("roofline-view").append(element("p", { class: "card" }, limits ? "No kernel with counted operations." : "Nothing was run, so there is nothing to show."));
    return;
  }
  const intensity = (row) => row.work.flops / row.work.nbytes;
  const used = [...new Set(rows.map((row) => row.work.dtype))].filter((dtype) => known(limits.peaks[dtype]));
  const peaks = used.map((dtype) => limits.peaks[dtype]);
  const across = span([...rows.map(intensity), ...peaks.map((peak) => peak / limits.bandwidth * 3), Math.min(...peaks) / limits.bandwidth / 6]);
  const up = span([...rows.map((row) => row.work.gflops), ...peaks, Math.min(...peaks) / 6]);
  const x = (value) => PLOT.left + (Math.log10(value) - across[0]) / (across[1] - across[0]) * (PLOT.width - PLOT.left - PLOT.right);
  const y = (value) => PLOT.height - PLOT.bottom - (Math.log10(value) - up[0]) / (up[1] - up[0]) * (PLOT.height - PLOT.top - PLOT.bottom);
  const svg = shape("svg", { width: PLOT.width, height: PLOT.height, role: "group", "aria-label": "Roofline: kernels beneath the machine's limits" });
  for (const value of ticks(across)) {
    svg.append(shape("line", { class: "grid", x1: x(value), x2: x(value), y1: PLOT.top, y2: PLOT.height - PLOT.bottom }),
      shape("text", { x: x(value), y: PLOT.height - PLOT.bottom + 18, "text-anchor": "middle" }, String(value)));
  }
  for (const value of ticks(up)) {
    svg.append(shape("line", { class: "grid", x1: PLOT.left, x2: PLOT.width - PLOT.right, y1: y(value), y2: y(value) }),
      shape("text", { x: PLOT.left - 8, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  svg.append(shape("line", { class: "axis", x1: PLOT.left, x2: PLOT.width - PLOT.right, y1: PLOT.height - PLOT.bottom, y2: PLOT.height - PLOT.bottom }),
    shape("line", { class: "axis", x1: PLOT.left, x2: PLOT.left, y1: PLOT.top, y2: PLOT.height - PLOT.bottom }),
    shape("text", { x: (PLOT.left + PLOT.width) / 2, y: PLOT.height - 8, "text-anchor": "middle" }, "operations for each byte of the tensors"),
    shape("text", { transform: `translate(15 ${PLOT.height / 2}) rotate(-90)`, "text-anchor": "middle" }, "GFLOP/s"));
  const start = Math.max(10 ** across[0], 10 ** up[0] / limits.bandwidth);
  const labels = [];
  used.forEach((dtype) => {
    const peak = limits.peaks[dtype];
    svg.append(shape("path", { class: "roof", d: `M${x(start)} ${y(start * limits.bandwidth)}L${x(peak / limits.bandwidth)} ${y(peak)}L${x(10 ** across[1])} ${y(peak)}` }));
    labels.push(shape("text", { class: "strong", x: x(peak / limits.bandwidth) + 4, y: y(peak) - 7 }, `${dtype}: ${digits(peak)} GFLOP/s`));
  });
  const most = Math.max(...peaks);
  for (const { name, bandwidth } of [{ name: "memory", bandwidth: limits.bandwidth }, ...limits.caches]) {
    const first = Math.max(10 ** across[0], 10 ** up[0] / bandwidth);
    const last = most / bandwidth;
    if (last <= first) continue;
    const half = Math.sqrt(first * last);
    const slope = Math.atan2(y(half * bandwidth) - y(2 * half * bandwidth), x(2 * half) - x(half)) * -180 / Math.PI;
    if (name !== "memory") svg.append(shape("path", { class: "roof cache", d: `M${x(first)} ${y(first * bandwidth)}L${x(last)} ${y(most)}` }));
    labels.push(shape("text", { class: "strong", transform: `translate(${x(half) - 8} ${y(half * bandwidth) - 8}) rotate(${slope.toFixed(1)})`, "text-anchor": "middle" }, `${name}: ${digits(bandwidth)} GB/s`));
  }
  points = [...rows].sort((a, b) => b.work.us - a.work.us).map((row) => {
    const radius = 4.5 + 13 * Math.sqrt(row.work.share || 0);
    const text = `${row.op}\n${digits(row.work.gflops)} GFLOP/s, ${percent(row.work.of_peak)} of peak\n${time(row.work.us)} (${percent(row.work.share)}), ${row.regions.length} calls`;
    const node = shape("circle", { class: `point ${boundKind(row.work)}`, cx: x(intensity(row)), cy: y(row.work.gflops), r: radius, tabindex: 0, role: "button", "aria-label": text.replaceAll("\n", ", ") });
    const open = () => { choose(row.regions[0]); byId("graph").scrollIntoView(); };
    node.addEventListener("click", open);
    node.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } });
    tipFor(node, text);
    svg.append(node);
    return { row, node };
  });
  svg.append(...labels); // above the points, which would hide them
  byId("roofline-view").append(svg);
}
function span(values) {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  return [Math.min(...logs) - 0.12, Math.max(...logs) + 0.16];
}
// 1, 2 and 5 times powers of ten; only the powers if there would be too many.
function ticks([least, most]) {
  const found = [];
  for (let power = Math.floor(least); power <= most; power += 1) {
    for (const times of (most - least) * 300 > PLOT.width ? [1] : [1, 2, 5]) {
      const value = Number(`${times}e${power}`);
      if (Math.log10(value) >= least && Math.log10(value) <= most) found.push(value);
    }
  }
  return found;
}
