// The sections around the pictures: summary, advice, memory, layouts, records, decisions.
const tile = (label, value, more) => element("div", { class: "tile" }, element("div", { class: "label" }, label), element("div", { class: "value" }, value), element("div", { class: "more" }, more || ""));
const regionLink = (number) => {
  const region = regionOf(number);
  return element("button", { class: "link", type: "button", onclick: () => { choose(number); byId("graph").scrollIntoView(); } }, region.op);
};
function simpleTable(names, rows, label) {
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, element("table", {},
    element("thead", {}, element("tr", {}, names.map((name) => element("th", { scope: "col", class: name.startsWith("#") ? "number" : null }, name.replace("#", ""))))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell) => element("td", { class: cell && cell.number !== undefined ? "number" : null }, cell && cell.number !== undefined ? cell.number : cell)))))));
}
function drawSummary() {
  const head = data.head;
  const leftShare = data.regions.filter((region) => !region.taken).reduce((sum, region) => sum + (region.work.share || 0), 0);
  const measured = known(head.total_us);
  byId("summary").append(element("div", { class: "tiles" },
    tile("one run", measured ? time(head.total_us) : "not run", measured ? `median of ${head.repeat}, least ${time(head.least_total_us)}; ${head.threads} thread${head.threads > 1 ? "s" : ""}` : head.unmeasured),
    ...Object.entries(head.others_us).filter(([name]) => name !== "tvm_hybrid").map(([name, us]) => tile(name, time(us), `${digits(us / head.others_us.tvm_hybrid, 3)} times ours, ${time(head.others_us.tvm_hybrid)}, in turns`)),
    tile("share of the machine's peak", percent(head.of_peak), known(head.least_us) ? `all products at the peak: ${time(head.least_us)}${data.regions.some((region) => region.op.includes("winograd")) ? ", Winograd's counted as direct ones" : ""}` : ""),
    tile("kernels together", time(head.kernels_us), `${data.regions.length} call${data.regions.length > 1 ? "s" : ""}${head.kernels_us > head.total_us ? "; measuring adds about 0.5 µs to each" : known(head.outside_us) ? `; between them ${time(head.outside_us)}` : ""}`),
    tile("by templates", `${data.regions.filter((region) => region.taken).length} of ${data.regions.length}`, known(head.kernels_us) ? `${percent(leftShare)} of the time is generic code` : ""),
    tile("weights", bytes(data.memory.weights), known(data.memory.peak) ? `values between kernels: ${bytes(data.memory.peak)} at most` : ""),
    tile("made for", head.isa, [head.cpu, `precision ${head.precision}`].join(", "))));
  const apart = measured && known(head.kernels_us) ? Math.max(head.total_us / head.least_total_us, head.total_us / (head.kernels_us + (head.outside_us || 0)), (head.kernels_us - 0.6 * data.regions.length) / head.total_us) : 1;
  if (apart > 1.2) {
    const sum = time(head.kernels_us + (head.outside_us || 0));
    byId("summary").append(element("p", { class: "warning", role: "note" }, `Runs of the same program differ by a factor of ${digits(apart, 2)}: the fastest run took ${time(head.least_total_us)}, the median one ${time(head.total_us)}, the kernels with the time between them ${sum}. Something else was running. Make the page again on an idle machine before you trust its times.`));
  }
}
function drawAdvice() {
  const list = data.advice;
  byId("advice-list").append(list.length ? element("div", { class: "advices" }, list.map((advice) => element("article", { class: "advice" },
    element("h3", {}, advice.title, element("span", {}, known(advice.share) ? `${percent(advice.share)} of the time` : "")),
    element("p", {}, marked(advice.text)), advice.command ? code(advice.command) : ""))) : element("p", { class: "card" }, "No option is known that would make it faster."));
}
function drawLeft() {
  const section = byId("left");
  const share = data.left.reduce((sum, number) => sum + (regionOf(number).work.share || 0), 0);
  if (!data.left.length) { byId("left-list").append(element("p", { class: "card" }, "Nothing: templates build all regions.")); }
  else {
    const nodes = data.left.some((number) => regionOf(number).origins.length);
    byId("left-list").append(simpleTable(["operators", ...(nodes ? ["ONNX nodes"] : []), "#time", "#share", "kernel", "why"], data.left.map((number) => {
      const region = regionOf(number);
      const last = region.origins.at(-1); // the node that makes the result
      const origin = last ? [code(last), region.origins.length > 1 ? ` and ${region.origins.length - 1} more` : ""] : "";
      return [regionLink(number), ...(nodes ? [origin] : []), { number: time(region.work.us) }, { number: percent(region.work.share) }, code(region.kernel), region.reasons.join("; ")];
    }), "Operators left to generic code"));
  }
  if (share < 0.01) byId("layouts").after(section);
}
function drawMemory() {
  const memory = data.memory;
  byId("memory-list").append(element("div", { class: "card" }, facts([
    ["model's file", known(memory.model_file) ? bytes(memory.model_file) : ""],
    ["weights, as kernels read them", bytes(memory.weights)],
    ["values between kernels, most in use at a time", known(memory.peak) ? bytes(memory.peak) : ""],
    ["storage planned for them", known(memory.planned) ? `${bytes(memory.planned)} in ${memory.blocks} blocks` : "not known before the run"],
    ["these values without reuse of storage", memory.values ? bytes(memory.values) : ""],
    ["inputs and outputs", memory.inputs + memory.outputs ? `${bytes(memory.inputs)} and ${bytes(memory.outputs)}` : ""],
  ])));
  const rows = data.kernels.filter((row) => row.work.nbytes).sort((a, b) => b.work.nbytes - a.work.nbytes).slice(0, 12);
  if (rows.length) {
    byId("memory-list").append(element("h3", {}, "Kernels that move most, bytes of one call"), simpleTable(["operators", "#calls", "#weights", "#values read", "#written", "#GB/s"], rows.map((row) => {
      const region = regionOf(row.regions[0]);
      return [regionLink(region.number), { number: row.regions.length }, { number: bytes(region.moved.weights + region.moved.again) }, { number: bytes(region.moved.read) }, { number: bytes(region.moved.written) }, { number: digits(row.work.gbytes) }];
    }), "Bytes by kernel"));
  }
}
function drawLayouts() {
  const total = data.reorders.reduce((sum, number) => sum + (regionOf(number).work.us || 0), 0);
  const share = data.reorders.reduce((sum, number) => sum + (regionOf(number).work.share || 0), 0);
  const measured = known(data.head.kernels_us);
  byId("layouts-list").append(element("p", { class: "card" }, data.reorders.length
    ? `${data.reorders.length} reorder${data.reorders.length > 1 ? "s" : ""} in kernels of their own${measured ? `: ${time(total)}, ${percent(share)} of the time` : ""}.`
    : "No kernel only copies a tensor into another layout."));
  const layouts = data.notes.filter(isLayout);
  if (layouts.length) {
    byId("layouts-list").append(simpleTable(["block", "layouts"], layouts.map((note) => [code(note.node), note.reason]), "Layouts of blocks"));
  }
  if (data.reorders.length) {
    byId("layouts-list").append(simpleTable(["reorder", "what", "#time", "#bytes"], data.reorders.map((number) => {
      const region = regionOf(number);
      return [regionLink(number), region.reasons.join("; "), { number: time(region.work.us) }, { number: bytes(region.work.nbytes) }];
    }), "Reorders"));
  }
}
const isLayout = (note) => note.op === "layouts";
function drawRecords() {
  const taken = data.regions.filter((region) => region.taken);
  const formula = taken.filter((region) => region.source === "default").length;
  byId("records-list").append(element("p", { class: "card" }, data.records.length
    ? `${taken.length - formula} of ${taken.length} regions have the configuration of a record, the others that of their template's formula.`
    : `No records were used: the configurations of all ${taken.length} regions come from their templates' formulas.`));
  if (data.records.length) {
    byId("records-list").append(simpleTable(["record", "how", "region"], data.records.map((record) => [
      code(record.place), record.how + (record.shipped ? ", shipped" : ""), code(record.workload)]), "Records"));
  }
}
function drawNotes() {
  const notes = data.notes.filter((note) => !isLayout(note));
  byId("notes").hidden = !notes.length;
  byId("notes-list").append(simpleTable(["value", "about", "done", "why"], notes.map((note) => [code(note.node), note.op, note.taken ? "yes" : "no", note.reason]), "Decisions without a kernel"));
}
function drawAbout() {
  const head = data.head;
  byId("about-list").append(element("div", { class: "card" }, facts([
    ["model", head.model], ["date", head.date], ["CPU of the code", `${head.cpu} (${head.isa})`], ["CPU it ran on", head.processor],
    ["threads", String(head.threads)], ["precision", head.precision], ["fusion", head.fusion], ["fast math", head.fast_math],
    ["inputs", head.inputs.join("; ")], ["outputs", head.outputs.join("; ")],
    ["versions", Object.entries(head.versions).map(([name, version]) => `${name} ${version}`).join(", ")],
    ["peaks, measured", data.limits ? Object.entries(data.limits.peaks).map(([dtype, peak]) => `${dtype} ${digits(peak)} GFLOP/s`).join(", ") : ""],
    ["bandwidth of memory, measured", data.limits ? `${digits(data.limits.bandwidth)} GB/s` : ""],
    ["bandwidth of caches", data.limits ? data.limits.caches.map((each) => `${each.name} ${digits(each.bandwidth)} GB/s`).join(", ") : ""],
  ])));
}
