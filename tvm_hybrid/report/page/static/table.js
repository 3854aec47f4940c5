// The table of kernels, or of all calls, sorted by any column.
const columns = [
  { name: "operators", words: true, of: (row) => row.op },
  { name: "kernel", words: true, of: (row) => row.kernel },
  { name: "calls", of: (row) => row.regions.length, text: (value) => String(value) },
  { name: "time", of: (row) => row.work.us, text: time },
  { name: "share", of: (row) => row.work.share, text: percent },
  { name: "time beside the roof", meter: true, of: (row) => row.work.us },
  { name: "of the roof", of: (row) => (known(row.work.us) && row.work.least_us ? row.work.least_us / row.work.us : null), text: percent },
  { name: "GFLOP/s", of: (row) => row.work.gflops, text: digits },
  { name: "of peak", of: (row) => row.work.of_peak, text: percent },
  { name: "GB/s", of: (row) => row.work.gbytes, text: digits },
  { name: "bound by", of: (row) => row.work.bound },
];
let sorting = { column: 3, down: true };
let byCall = false;
let tableRows = [];
const callRows = () => data.regions.map((region) => ({ ...region, regions: [region.number] }));
function drawTable() {
  const rows = (byCall ? callRows() : [...data.kernels]);
  const key = columns[sorting.column].of;
  rows.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (!known(x) || !known(y)) return known(y) - known(x);
    return (sorting.down ? -1 : 1) * (typeof x === "string" ? x.localeCompare(y) : x - y);
  });
  const longest = Math.max(...rows.map((row) => row.work.us || 0), 1e-9);
  tableRows = rows.map((row) => ({ row, node: drawRow(row, longest) }));
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.column : undefined;
  byId("kernel-table").replaceChildren(
    element("caption", { class: "hidden" }, "Kernels with their time, speed and share of the machine's peak"),
    element("thead", {}, element("tr", {}, columns.map((column, index) => element("th", {
      scope: "col", class: column.words || column.meter ? null : "number", "aria-sort": index === sorting.column ? (sorting.down ? "descending" : "ascending") : "none",
    }, element("button", { type: "button", "data-column": index, onclick: () => {
      sorting = { column: index, down: index === sorting.column ? !sorting.down : !column.words };
      drawTable();
    } }, column.name))))),
    element("tbody", {}, tableRows.map(({ node }) => node)));
  if (focused !== undefined) byId("kernel-table").querySelector(`[data-column="${focused}"]`).focus();
  markRows();
}
const sizes = (row) => (regionOf(row.regions[0]).writes[0] || { text: "" }).text;
function drawRow(row, longest) {
  return element("tr", {}, columns.map((column, index) => {
    const value = column.of(row);
    if (column.meter) return element("td", {}, known(value) ? meter(row.work, longest) : "");
    if (index === 0) return element("td", { class: "words" }, element("button", { class: "link", type: "button", onclick: () => { choose(row.regions[0]); byId("graph").scrollIntoView(); } }, value), element("span", { class: "sizes" }, sizes(row)), row.taken ? "" : element("span", { class: "tag generic" }, "generic"));
    if (index === 1) return element("td", { class: "words" }, code(value || "–"));
    if (column.name === "bound by") return element("td", { class: "number" }, value ? element("span", { class: `tag ${boundKind(row.work)}` }, value) : "–");
    return element("td", { class: "number" }, column.text(value));
  }));
}
function meter(work, longest) {
  const least = Math.min(work.least_us || 0, work.us);
  return element("div", { class: "meter", role: "img", "aria-label": `${time(work.us)}; the roof allows ${time(work.least_us)}` },
    element("i", { style: `width:${(100 * work.us / longest).toFixed(2)}%` }), element("i", { style: `width:${(100 * least / longest).toFixed(2)}%` }));
}
