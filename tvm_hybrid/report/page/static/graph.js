// The graph: an SVG, moved and zoomed by its viewBox.
const picture = data.picture;
const view = { x: 0, y: 0, scale: 1 };
let canvas = null;
let boxes = [];
function drawGraph() {
  if (!picture) {
    byId("graph-view").append(element("p", { class: "card" }, "This library is of version 0.2 or older, which kept no graph. Export it again, or make the page of the model itself."));
    for (const button of document.querySelectorAll(".tools button")) button.disabled = true;
    return;
  }
  const most = Math.max(...data.regions.map((region) => region.work.share || 0), 1e-9);
  canvas = shape("svg", { tabindex: 0, role: "group", "aria-label": `Graph of ${data.regions.length} regions` },
    shape("defs", {}, shape("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, shape("path", { d: "M0 0 8 4 0 8z" }))));
  const edges = picture.edges.map((edge) => {
    const line = shape("path", { class: "edge", d: curve(edge.points), "marker-end": "url(#arrow)" }, shape("title", {}, edge.text));
    canvas.append(line);
    return line;
  });
  boxes = picture.boxes.map((box, index) => drawBox(box, index, most));
  canvas.append(...boxes);
  byId("graph-view").append(canvas);
  listeners.push((number, move) => {
    picture.boxes.forEach((box, index) => boxes[index].classList.toggle("chosen", box.region === number));
    picture.edges.forEach((edge, index) => edges[index].classList.toggle("chosen",
      picture.boxes[edge.source].region === number || picture.boxes[edge.target].region === number));
    const index = picture.boxes.findIndex((box) => box.region === number);
    tabTo(index);
    if (move) centre(index, Math.max(view.scale, 0.7));
  });
  bindGraph();
  const fit = fitting();
  if (fit >= 0.55) showAll();
  else {
    centre(0, 0.85);
    // Starts at the model's first input, without an empty part beside the picture.
    const width = canvas.clientWidth / view.scale;
    const spare = picture.width + 40 - width;
    view.x = spare > 0 ? Math.min(Math.max(view.x, -20), spare - 20) : (picture.width - width) / 2;
    view.y = -40;
    place();
  }
}
function curve(points) {
  let path = `M${points[0][0]} ${points[0][1]}`;
  for (let index = 1; index < points.length; index += 1) {
    const [x, y] = points[index - 1];
    const [u, v] = points[index];
    path += x === u || y === v ? `L${u} ${v}` : `C${x} ${(y + v) / 2} ${u} ${(y + v) / 2} ${u} ${v}`;
  }
  return path;
}
function drawBox(box, index, most) {
  const region = box.region >= 0 ? regionOf(box.region) : null;
  const share = region ? region.work.share || 0 : 0;
  const label = region ? `${region.op}, ${time(region.work.us)}${region.taken ? "" : ", left to generic code"}` : `${box.kind} ${box.title}`;
  const last = box.lines.length - 1;
  const group = shape("g", { class: `box ${box.kind}`, transform: `translate(${box.x} ${box.y})`, tabindex: -1, role: region ? "button" : "img", "aria-label": label },
    shape("rect", { class: "frame", width: box.width, height: box.height, rx: 6 }),
    share ? shape("rect", { class: "heat", x: 1, y: 1, width: box.width - 2, height: box.height - 2, rx: 5, "fill-opacity": (0.05 + 0.4 * share / most).toFixed(3) }) : "",
    shape("text", { class: "title", x: 9, y: 17 }, box.title),
    region && known(region.work.us) ? shape("text", { class: "time", x: box.width - 9, y: 17, "text-anchor": "end" }, time(region.work.us)) : "",
    box.lines.map((line, place) => shape("text", { x: 9, y: 34 + 15 * place, class: place === last ? "shape" : null }, line)));
  if (region) {
    tipFor(group, `${region.op}\n${region.function}\n${time(region.work.us)}, ${percent(region.work.share)}`);
    group.addEventListener("click", () => { if (!moved) choose(box.region, false); });
  }
  group.dataset.index = index;
  return group;
}
const fitting = () => Math.min(canvas.clientWidth / (picture.width + 40), canvas.clientHeight / (picture.height + 40));
function place() {
  const width = canvas.clientWidth / view.scale;
  canvas.setAttribute("viewBox", `${view.x} ${view.y} ${width} ${canvas.clientHeight / view.scale}`);
}
function showAll() {
  view.scale = Math.min(fitting(), 1.4);
  view.x = picture.width / 2 - canvas.clientWidth / view.scale / 2;
  view.y = picture.height / 2 - canvas.clientHeight / view.scale / 2;
  place();
}
function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = Math.min(4, Math.max(Math.min(fitting() / 2, 0.5), view.scale * factor));
  view.x += x / view.scale - x / scale;
  view.y += y / view.scale - y / scale;
  view.scale = scale;
  place();
}
function centre(index, scale = view.scale) {
  const box = picture.boxes[index];
  if (!box) return;
  view.scale = scale;
  view.x = box.x + box.width / 2 - canvas.clientWidth / scale / 2;
  view.y = box.y + box.height / 2 - canvas.clientHeight / scale / 2;
  place();
}
function tabTo(index) {
  boxes.forEach((box, other) => box.setAttribute("tabindex", other === index ? 0 : -1));
}
// Finds the next box: along an edge for up and down, else the nearest one at about equal height.
function neighbour(index, key) {
  const here = picture.boxes[index];
  let found;
  if (key === "ArrowDown") found = picture.edges.filter((edge) => edge.source === index).map((edge) => edge.target);
  else if (key === "ArrowUp") found = picture.edges.filter((edge) => edge.target === index).map((edge) => edge.source);
  else {
    const side = key === "ArrowRight" ? 1 : -1;
    found = picture.boxes.map((_, other) => other).filter((other) => {
      const box = picture.boxes[other];
      return (box.x - here.x) * side > 0 && Math.abs(box.y + box.height / 2 - here.y - here.height / 2) < 60;
    });
  }
  const distance = (other) => Math.abs(picture.boxes[other].x - here.x);
  return found.sort((a, b) => distance(a) - distance(b))[0];
}
let moved = false;
function bindGraph() {
  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, event); moved = false; });
  addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    if (!moved && Math.hypot(dx, dy) < 4) return;
    moved = true;
    canvas.classList.add("moving");
    if (pointers.size === 2) {
      const other = [...pointers.values()].find((each) => each.pointerId !== event.pointerId);
      const span = (each) => Math.hypot(each.clientX - other.clientX, each.clientY - other.clientY);
      const at = canvas.getBoundingClientRect();
      zoom(span(event) / Math.max(span(before), 1), (event.clientX + other.clientX) / 2 - at.left, (event.clientY + other.clientY) / 2 - at.top);
    } else {
      view.x -= dx / view.scale;
      view.y -= dy / view.scale;
      place();
    }
    pointers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, (event) => { pointers.delete(event.pointerId); canvas.classList.remove("moving"); });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !canvas.contains(document.activeElement)) return;
    event.preventDefault();
    const at = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0025)), event.clientX - at.left, event.clientY - at.top);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const index = event.target.dataset.index === undefined ? -1 : Number(event.target.dataset.index);
    const step = 60 / view.scale;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (event.key === "0") showAll();
    else if (event.key === "Escape") document.activeElement.blur();
    else if ((event.key === "Enter" || event.key === " ") && index >= 0) { if (picture.boxes[index].region >= 0) choose(picture.boxes[index].region, false); }
    else if (moves[event.key] && index >= 0) {
      const next = neighbour(index, event.key);
      if (next !== undefined) { tabTo(next); centre(next); boxes[next].focus({ preventScroll: true }); }
    } else if (moves[event.key]) { view.x += moves[event.key][0]; view.y += moves[event.key][1]; place(); }
    else return;
    event.preventDefault();
  });
  new ResizeObserver(place).observe(canvas);
  byId("zoom-in").addEventListener("click", () => zoom(1.25));
  byId("zoom-out").addEventListener("click", () => zoom(0.8));
  byId("zoom-all").addEventListener("click", showAll);
  byId("zoom-slowest").addEventListener("click", () => choose(slowest()));
}
const slowest = () => data.regions.reduce((best, region) => ((region.work.us || 0) > (regionOf(best).work.us || 0) ? region.number : best), 0);
