// Opens a page in Chromium, at the widths of a desktop and of a phone, in light and in dark. Prints as JSON what the
// browser and axe-core say of it.
// node browser.cjs PAGE NODE_MODULES CHROMIUM [FOLDER for pictures]
// PAGE is a file or an address.
const fs = require("fs");
const path = require("path");

const [page, modules, chromium, pictures] = process.argv.slice(2);
const puppeteer = require(path.join(modules, "puppeteer-core"));
const axe = fs.readFileSync(path.join(modules, "axe-core", "axe.min.js"), "utf8");
const SIZES = { desktop: [1280, 900], phone: [390, 844] };

async function look(browser, name, scheme) {
  const [width, height] = SIZES[name];
  const tab = await browser.newPage();
  const found = { name, scheme, console: [], requests: [] };
  tab.on("console", (message) => found.console.push(`${message.type()}: ${message.text()}`));
  tab.on("pageerror", (error) => found.console.push(String(error)));
  tab.on("dialog", (dialog) => found.console.push(`dialog: ${dialog.message()}`) && dialog.dismiss());
  tab.on("request", (request) => found.requests.push(request.url()));
  await tab.setViewport({ width, height, deviceScaleFactor: 1, isMobile: name === "phone" });
  await tab.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await tab.goto(page.startsWith("http") ? page : "file://" + path.resolve(page), { waitUntil: "load" });
  // A page that loads itself again is stopped.
  await tab.evaluate(() => document.querySelector("header button")?.click());
  await tab.evaluate(() => Promise.all([...document.querySelectorAll(".chart + script")].map((one) => draw(one.previousElementSibling))));
  found.wider = await tab.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  found.scripts = await tab.evaluate(() => document.querySelectorAll("script:not([type])").length);
  found.handlers = await tab.evaluate(() =>
    [...document.querySelectorAll("*")].filter((each) => [...each.attributes].some((one) => one.name.startsWith("on"))).length);
  found.hidden = await tab.evaluate(() =>
    [...document.querySelectorAll(".chart")].filter((each) =>
      [...each.querySelectorAll("svg")].filter((one) => one.getBoundingClientRect().width > 0).length !== 1).length);
  found.sorted = await tab.evaluate(() => {
    const table = document.querySelector("table[data-name]");
    const last = table.tHead.rows[0].cells.length - 1;
    const values = () => [...table.tBodies[0].rows].map((row) => row.cells[last].textContent.trim());
    const button = table.tHead.rows[0].cells[last].querySelector("button");
    button.focus();
    button.click();
    const up = values();
    button.click();
    return { up, down: values(), sort: table.tHead.rows[0].cells[last].getAttribute("aria-sort") };
  });
  found.csv = await tab.evaluate(async () => {
    const saved = [];
    URL.createObjectURL = (blob) => { saved.push(blob); return "#content"; };
    document.querySelector('table[data-name="accuracy-by-client"]')?.parentElement.nextElementSibling.click();
    return saved[0]?.text();
  });
  if (pictures) {
    await tab.screenshot({ path: path.join(pictures, `${name}-${scheme}.png`), fullPage: true });
    for (const figure of await tab.$$("figure")) {
      const id = await figure.evaluate((each) => each.id);
      await figure.screenshot({ path: path.join(pictures, `${name}-${scheme}-${id}.png`) });
    }
  }
  await tab.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
  await tab.evaluate(axe);
  const results = await tab.evaluate(() => window.axe.run());
  found.faults = results.violations.map((each) => ({
    rule: each.id, impact: each.impact, nodes: each.nodes.length, first: each.nodes[0].html.slice(0, 200),
  }));
  await tab.close();
  return found;
}

(async () => {
  const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox", "--disable-gpu"] });
  try {
    const found = [];
    for (const name of Object.keys(SIZES)) {
      for (const scheme of ["light", "dark"]) found.push(await look(browser, name, scheme));
    }
    console.log(JSON.stringify(found));
  } finally {
    await browser.close();
  }
})();
