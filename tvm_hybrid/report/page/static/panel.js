// The details of a region, next to the graph.
const listeners = [];
let chosen = -1;
function choose(number, move = true) {
  chosen = number;
  showRegion(regionOf(number));
  for (const listener of listeners) listener(number, move);
}
function tensorList(tensors) {
  return element("ul", { class: "plain" }, tensors.map((tensor) =>
    element("li", {}, code(tensor.text), ` ${tensor.kind === "weight" ? "weight, packed" : tensor.name}`, tensor.nbytes ? `, ${bytes(tensor.nbytes)}` : "")));
}
function verdict(work) {
  if (!work.bound) return "";
  const text = work.bound === "compute" ? "computing takes longer than moving its bytes" : `moving its bytes from ${work.bound} takes longer than computing`;
  return element("span", {}, element("span", { class: `tag ${boundKind(work)}` }, work.bound), ` ${text}`);
}
function showRegion(region) {
  const work = region.work;
  const config = Object.entries(region.config).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  const roof = known(work.us) && work.least_us ? `${time(work.least_us)} (${percent(work.least_us / work.us)} of the time)` : "";
  const fused = region.parts.map((part) => element("li", {}, part[0], part.length > 1 ? ` with ${part.slice(1).join(", ")} fused` : ""));
  byId("panel").replaceChildren(
    element("h3", {}, region.op),
    region.taken ? "" : element("span", { class: "tag generic" }, "left to generic code"),
    facts([
      ["value", code(region.node)],
      ["time", known(work.us) ? `${time(work.us)}, ${percent(work.share)} of all kernels` : ""],
      ["operations", operations(work.flops)],
      ["bytes", work.nbytes ? `${bytes(work.nbytes)}${region.moved.again ? ", weights in each step" : ""}` : region.reads.length ? "known at run time" : ""],
      ["speed", known(work.gflops) ? `${digits(work.gflops)} GFLOP/s, ${percent(work.of_peak)} of the ${work.dtype} peak` : ""],
      ["traffic", known(work.gbytes) ? `${digits(work.gbytes)} GB/s` : ""],
      ["by the roof", roof],
      ["bound by", verdict(work)],
    ]),
    element("h3", {}, "Operators"), element("ul", { class: "plain" }, fused),
    region.origins.length ? element("h3", {}, "Nodes of the ONNX model") : "",
    region.origins.length ? element("ul", { class: "plain" }, region.origins.map((origin) => element("li", {}, code(origin)))) : "",
    element("h3", {}, "Why"),
    element("ul", { class: "plain" }, region.reasons.map((reason) => element("li", {}, reason)),
      region.on_vectors ? element("li", {}, `on vectors, not on tiles: ${region.on_vectors}`) : "",
      region.at_run_time ? element("li", {}, `decided at run time: ${region.at_run_time}`) : ""),
    element("h3", {}, "Kernel"),
    facts([
      ["function", code(region.function)], ["kernel", code(region.kernel)],
      ["configuration", config ? code(config) : ""],
      ["chosen by", region.record ? `${region.source} (${region.record})` : region.source === "default" ? "the template's formula; no record" : region.source],
    ]),
    region.reads.length ? element("h3", {}, "Reads") : "", region.reads.length ? tensorList(region.reads) : "",
    region.writes.length ? element("h3", {}, "Writes") : "", region.writes.length ? tensorList(region.writes) : "",
    region.workload ? element("details", {}, element("summary", {}, "Key of the region"), code(region.workload)) : "",
  );
}
