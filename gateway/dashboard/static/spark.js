// A small line of the last minute, with its value in words.

const SPACE = "http://www.w3.org/2000/svg";
const KEPT = 60;

export class Spark {
  constructor(name, told) {
    this.name = name;
    this.told = told;
    this.values = [];
    this.element = document.createElementNS(SPACE, "svg");
    this.element.setAttribute("class", "spark");
    this.element.setAttribute("viewBox", `0 0 ${KEPT - 1} 20`);
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("role", "img");
    this.line = document.createElementNS(SPACE, "polyline");
    this.element.append(this.line);
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > KEPT) this.values.shift();
    const most = Math.max(...this.values);
    const first = KEPT - this.values.length;
    const points = this.values.map((each, place) => `${first + place},${19 - (most ? (18 * each) / most : 0)}`);
    this.line.setAttribute("points", points.join(" "));
    const label = `${this.name}: ${this.told(value)}, at most ${this.told(most)} in the last minute`;
    this.element.setAttribute("aria-label", label);
  }
}
