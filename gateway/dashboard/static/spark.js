// A small line of the last minute, with its value in words.

import { element, say } from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";
const KEPT = 60;

export class Spark {
  constructor(name, told) {
    this.name = name;
    this.told = told;
    this.values = [];
    this.picture = document.createElementNS(SPACE, "svg");
    this.picture.setAttribute("class", "spark");
    this.picture.setAttribute("viewBox", `0 0 ${KEPT - 1} 20`);
    this.picture.setAttribute("preserveAspectRatio", "none");
    this.picture.setAttribute("role", "img");
    this.line = document.createElementNS(SPACE, "polyline");
    this.picture.append(this.line);
    this.now = element("span");
    this.element = element("div", {}, element("p", { className: "pair" }, `${name} `, this.now), this.picture);
  }

  // `null` is not known yet.
  add(known) {
    say(this.now, known === null ? "not measured" : this.told(known));
    const value = known ?? 0;
    this.values.push(value);
    if (this.values.length > KEPT) this.values.shift();
    const most = Math.max(...this.values);
    const first = KEPT - this.values.length;
    const points = this.values.map((each, place) => `${first + place},${19 - (most ? (18 * each) / most : 0)}`);
    this.line.setAttribute("points", points.join(" "));
    const label = `${this.name}: ${this.told(value)}, at most ${this.told(most)} in the last minute`;
    this.picture.setAttribute("aria-label", label);
  }
}
