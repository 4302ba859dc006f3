"use strict";
// Charts with tooltips, tables that sort, and a button that saves a table as CSV. Without scripts, the page is complete
// but for these.
const numberOf = (text) => (text === "" ? NaN : Number.parseFloat(text));
const collator = new Intl.Collator(undefined, { numeric: true });

const textOf = (row, column) => row.cells[column].textContent.trim();

function compare(column, sign) {
  return (one, other) => {
    const [a, b] = [textOf(one, column), textOf(other, column)];
    const [x, y] = [numberOf(a), numberOf(b)];
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
    return sign * (Number.isNaN(x) ? collator.compare(a, b) : x - y || collator.compare(a, b));
  };
}

function sortBy(table, header) {
  const descends = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descends ? "descending" : "ascending");
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort(compare(header.cellIndex, descends ? -1 : 1)));
}

// A spreadsheet takes a text with such a beginning for a formula; numbers are none.
const inert = (text) => (/^[=+\-@\t\r\n＝＋－＠]/.test(text) && !/^[+-]?\d+(\.\d+)?$/.test(text) ? "'" + text : text);
const quoted = (text) => (/[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text);

function save(table) {
  const lines = [...table.rows].map((row) => [...row.cells].map((cell) => quoted(inert(cell.textContent.trim()))).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
  link.download = table.dataset.name + ".csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

for (const table of document.querySelectorAll("table[data-name]")) {
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, header));
    header.append(button);
  }
  const button = document.createElement("button");
  button.type = "button";
  button.className = "csv";
  button.textContent = "Save as CSV";
  button.setAttribute("aria-label", "Save as CSV: " + table.caption.textContent);
  button.addEventListener("click", () => save(table));
  table.parentElement.after(button);
}

// A table that is wider than its place says so.
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) target.classList.toggle("wider", target.scrollWidth > target.clientWidth + 1);
});
for (const place of document.querySelectorAll(".scroll")) sizes.observe(place);

// The drawing that came with the page is replaced when it comes near the screen. Expressions are interpreted (ast), since
// the policy forbids to compile them.
const tooltip = { theme: "ours", disableDefaultStyle: true };
const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false, tooltip };
async function draw(chart) {
  near.unobserve(chart);
  await vegaEmbed(chart, JSON.parse(chart.nextElementSibling.textContent), options);
  chart.querySelector("svg").setAttribute("aria-hidden", "true"); // its place has a label
}

const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
}, { rootMargin: "600px" });
for (const specification of document.querySelectorAll(".chart + script")) near.observe(specification.previousElementSibling);

// A page of something that continues loads itself again, unless the reader stops it. At a port, only while somebody answers:
// the page of an error would stay.
const { refresh, latest } = document.body.dataset;
const head = document.querySelector("header");

function warn(text) {
  const warning = document.createElement("p");
  warning.className = "warning";
  warning.setAttribute("role", "alert");
  warning.textContent = text;
  head.querySelector(".warning")?.remove();
  head.append(warning);
}

async function loadAgain() {
  try {
    if (location.protocol.startsWith("http")) await fetch(location.href, { method: "HEAD", cache: "no-store" });
    location.reload();
  } catch {
    warn("The server does not answer.");
    wait();
  }
}

let timer;
function wait() {
  timer = setTimeout(loadAgain, 1000 * refresh);
}

if (refresh) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Stop loading again";
  button.addEventListener("click", () => {
    if (button.textContent === "Load again") location.reload();
    clearTimeout(timer);
    button.textContent = "Load again";
  });
  head.append(button);
  wait();
}

// A page that is written again at least so often, in seconds since 1970, is out of date after that.
if (refresh && Date.now() / 1000 > latest) warn("Nothing was written here for a while: the server does not run.");
