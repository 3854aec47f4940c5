// Assembles the page: sections, search, light and dark.
function matches(row, text) {
  // Names of values contain operators, so a reader of a value is found only by the whole name.
  const nameOf = (tensor) => (tensor.kind !== "value" || tensor.name.toLowerCase() === text ? tensor.name : "");
  const tensors = [...(row.reads || []), ...(row.writes || [])].map((tensor) => `${nameOf(tensor)} ${tensor.text}`);
  return [row.op, row.function, row.kernel, row.node || "", row.workload || "", ...(row.origins || []), ...tensors].join("\n").toLowerCase().includes(text);
}
let found = new Set();
let query = "";
let step = -1;
function search(text) {
  query = text.trim().toLowerCase();
  step = -1;
  found = new Set(query ? data.regions.filter((region) => matches(region, query)).map((region) => region.number) : []);
  let count = found.size;
  if (picture) {
    picture.boxes.forEach((box, index) => {
      const named = query && box.region < 0 && `${box.title} ${box.lines.join(" ")}`.toLowerCase().includes(query);
      count += named ? 1 : 0;
      boxes[index].classList.toggle("found", Boolean(named) || found.has(box.region));
    });
    canvas.classList.toggle("searching", query !== "");
  }
  byId("found").textContent = query ? `${count} found` : "";
  markRows();
  markPoints();
}
function markPoints() {
  for (const { row, node } of points) node.classList.toggle("found", row.regions.some((number) => found.has(number)));
}
function markRows() {
  for (const { row, node } of tableRows) node.classList.toggle("found", row.regions.some((number) => found.has(number)));
}
function nextFound() {
  const numbers = [...found];
  if (!numbers.length) return;
  step = (step + 1) % numbers.length;
  choose(numbers[step]);
  byId("graph").scrollIntoView();
  byId("found").textContent = `${step + 1} of ${numbers.length}`;
}
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", theme === "dark" ? "Switch to light" : "Switch to dark");
}
const preferred = matchMedia("(prefers-color-scheme: dark)");
let picked = false;
setTheme(preferred.matches ? "dark" : "light");
preferred.addEventListener("change", () => { if (!picked) setTheme(preferred.matches ? "dark" : "light"); });
byId("theme").addEventListener("click", () => { picked = true; setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); });

drawSummary();
drawAdvice();
drawGraph();
drawTable();
drawRoofline();
new ResizeObserver(() => { if (byId("roofline-view").clientWidth !== PLOT.width) { drawRoofline(); markPoints(); } }).observe(byId("roofline-view"));
drawMemory();
drawLayouts();
drawRecords();
drawNotes();
drawAbout();
drawLeft();
byId("kernels-hint").textContent = known(data.head.kernels_us)
  ? "The bar is a kernel's time; its strong part is what the roof allows: computing at the machine's peak, or moving the tensors from the cache that holds them, or from memory. Each call has about half a microsecond of measuring in it. Winograd's convolutions count the operations of the direct ones."
  : `Nothing was run: ${data.head.unmeasured}`;
byId("roofline-hint").textContent = data.limits ? "A point is a kernel, the larger the more time it takes. A kernel is bound by moving its bytes (brown) or by computing (blue): slanted lines are what memory and each cache give, flat ones the peaks. Peaks and the bandwidth of memory were measured on this machine; caches are as its description has them." : "";
if (data.regions.length) choose(slowest(), false);
byId("search").addEventListener("input", (event) => search(event.target.value));
byId("search-form").addEventListener("submit", (event) => { event.preventDefault(); nextFound(); });
for (const choice of document.querySelectorAll('input[name="rows"]')) {
  choice.addEventListener("change", () => { byCall = choice.value === "calls" && choice.checked; drawTable(); });
}
document.documentElement.dataset.ready = "yes";
