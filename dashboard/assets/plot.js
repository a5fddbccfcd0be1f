// Plots, as SVG. Their sizes are those of a box that the style stretches.
import { el } from "./dom.js";

const space = "http://www.w3.org/2000/svg";
const width = 600;
const height = 160;

function shape(tag, attributes) {
  const node = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function picture(box, id) {
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", id });
  const left = el("span");
  const right = el("span");
  const top = el("span", { class: "axis-top figures" });
  box.replaceChildren(top, svg, el("div", { class: "axis figures", "aria-hidden": "true" }, left, right));
  return { svg, left, right, top };
}

const text = (node, value) => {
  if (node.textContent !== value) node.textContent = value;
};

// bars is a plot of numbers, one bar each.
export function bars(box, id, count) {
  const { svg, left, right, top } = picture(box, id);
  const all = [];
  const step = width / count;
  for (let i = 0; i < count; i++) {
    all.push(svg.appendChild(shape("rect", { x: i * step + 1, width: step - 2, y: height, height: 0, class: "bar-mark" })));
  }
  return (values, labels) => {
    const highest = Math.max(1, ...values);
    values.forEach((value, i) => {
      const tall = value > 0 ? Math.max(2, (value / highest) * (height - 4)) : 0;
      all[i].setAttribute("y", height - tall);
      all[i].setAttribute("height", tall);
    });
    text(left, labels.left);
    text(right, labels.right);
    text(top, labels.top);
    svg.setAttribute("aria-label", labels.spoken);
  };
}

// bands is a plot of what went on, one band above the other, each with a scale of its own:
// each point has a time and the values of the names in the bands. shares are their
// heights, of all.
export function bands(box, id, names, shares) {
  const { svg, left, right, top } = picture(box, id);
  const gap = 10;
  const scale = el("div", { class: "scale figures", "aria-hidden": "true" });
  const plot = el("div", { class: "plot" }, scale);
  svg.replaceWith(plot);
  plot.append(svg);
  svg.classList.add("banded");
  let from = 0;
  const all = names.map((lines, i) => {
    const tall = (height - gap * (names.length - 1)) * shares[i];
    const band = { from, tall, high: el("span"), low: el("span", {}, "0") };
    svg.append(shape("rect", { x: 0, y: from, width, height: tall, class: "band" }));
    for (const [node, y] of [[band.high, from + 8], [band.low, from + tall - 6]]) {
      node.style.insetBlockStart = (y / height) * 100 + "%";
      scale.append(node);
    }
    band.lines = lines.map((name) => [name, svg.appendChild(shape("path", { class: "line line-" + name, fill: "none" }))]);
    from += tall + gap;
    return band;
  });
  const marks = svg.appendChild(shape("path", { class: "line-mark", fill: "none" }));
  return (points, span, highest, labels) => {
    const end = points.length > 0 ? points[points.length - 1].at : 0;
    const x = (point) => (width - ((end - point.at) / span) * width).toFixed(1);
    all.forEach((band, i) => {
      for (const [name, path] of band.lines) {
        let drawn = "";
        let pen = "M";
        for (const point of points) {
          const value = point[name];
          if (value === null || value === undefined || end - point.at > span) {
            pen = "M";
            continue;
          }
          const y = band.from + band.tall - 2 - (Math.min(value, highest[i]) / Math.max(highest[i], 1)) * (band.tall - 4);
          drawn += pen + x(point) + " " + y.toFixed(1);
          pen = "L";
        }
        path.setAttribute("d", drawn);
      }
      text(band.high, labels.highest[i]);
    });
    marks.setAttribute("d", points.filter((point) => point.mark && end - point.at <= span).map((point) => "M" + x(point) + " 0V" + height).join(""));
    text(left, labels.left);
    text(right, labels.right);
    text(top, labels.top);
    svg.setAttribute("aria-label", labels.spoken);
  };
}
