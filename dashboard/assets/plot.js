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

// lines is a plot of what went on: each point has a time and the values of each line.
export function lines(box, id, names) {
  const { svg, left, right, top } = picture(box, id);
  const all = names.map((name) => svg.appendChild(shape("path", { class: "line line-" + name, fill: "none" })));
  return (points, span, highest, labels) => {
    const end = points.length > 0 ? points[points.length - 1].at : 0;
    names.forEach((name, i) => {
      let path = "";
      let pen = "M";
      for (const point of points) {
        const value = point[name];
        if (value === null || value === undefined || end - point.at > span) {
          pen = "M";
          continue;
        }
        const x = width - ((end - point.at) / span) * width;
        const y = height - 2 - (Math.min(value, highest[i]) / Math.max(highest[i], 1)) * (height - 4);
        path += pen + x.toFixed(1) + " " + y.toFixed(1);
        pen = "L";
      }
      all[i].setAttribute("d", path);
    });
    text(left, labels.left);
    text(right, labels.right);
    text(top, labels.top);
    svg.setAttribute("aria-label", labels.spoken);
  };
}
