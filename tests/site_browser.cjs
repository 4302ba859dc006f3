// Opens the site of the documentation in Chromium. Prints as JSON what the browser and axe-core say of its pages, at
// the widths of a desktop and of a phone, in light and in dark, and the first page that the search finds for questions.
// node site_browser.cjs ADDRESS NODE_MODULES CHROMIUM ASKED [FOLDER for pictures]
// ASKED is {"pages": [PATH, ...], "questions": [TEXT, ...]} as JSON.
const fs = require("fs");
const path = require("path");

const [address, modules, chromium, asked, pictures] = process.argv.slice(2);
const { pages, questions } = JSON.parse(asked);
const puppeteer = require(path.join(modules, "puppeteer-core"));
const axe = fs.readFileSync(path.join(modules, "axe-core", "axe.min.js"), "utf8");
const SIZES = { desktop: [1280, 900], phone: [390, 844] };
const PATIENCE = { timeout: 240000 };

async function look(browser, page, name, scheme) {
  const [width, height] = SIZES[name];
  const tab = await browser.newPage();
  const found = { page, name, scheme, console: [], elsewhere: [] };
  tab.on("console", (message) => {
    // the theme notes each change of colours by an ordinary line of the log
    if (message.type() !== "log") found.console.push(`${message.type()}: ${message.text()}`);
  });
  tab.on("pageerror", (error) => found.console.push(String(error)));
  tab.on("request", (request) => {
    if (!request.url().startsWith(address) && !request.url().startsWith("data:")) found.elsewhere.push(request.url());
  });
  await tab.setViewport({ width, height, deviceScaleFactor: 1, isMobile: name === "phone" });
  await tab.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await tab.goto(`${address}/${page}`, { waitUntil: "load", ...PATIENCE });
  found.wider = await tab.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  if (pictures) {
    await tab.screenshot({ path: path.join(pictures, `${page.replaceAll("/", "-")}-${name}-${scheme}.png`) });
  }
  // the theme changes its colours over a moment; a reader sees those at the end
  await tab.evaluate(() => Promise.all(
    document.getAnimations().filter((each) => each instanceof CSSTransition).map((each) => each.finished),
  ));
  await tab.evaluate(axe);
  const results = await tab.evaluate(() => window.axe.run());
  found.faults = results.violations.map((each) => ({ rule: each.id, first: each.nodes[0].html.slice(0, 200) }));
  await tab.close();
  return found;
}

async function search(browser, question) {
  const tab = await browser.newPage();
  await tab.goto(`${address}/search.html?q=${encodeURIComponent(question)}`, { waitUntil: "load", ...PATIENCE });
  const first = await tab.waitForSelector("#search-results ul.search > li > a", PATIENCE);
  await tab.waitForFunction(() => /finished/.test(document.querySelector("#search-results").textContent), PATIENCE);
  const href = await tab.$eval("#search-results ul.search > li > a", (link) => link.getAttribute("href"));
  await first.dispose();
  await tab.close();
  return href.split(/[?#]/)[0];
}

(async () => {
  const browser = await puppeteer.launch({
    executablePath: chromium, args: ["--no-sandbox", "--disable-gpu"], protocolTimeout: 300000,
  });
  try {
    const looks = [];
    for (const page of pages) {
      for (const name of Object.keys(SIZES)) {
        for (const scheme of ["light", "dark"]) looks.push(await look(browser, page, name, scheme));
      }
    }
    const answers = {};
    for (const question of questions) answers[question] = await search(browser, question);
    process.stdout.write(JSON.stringify({ looks, answers }));
  } finally {
    await browser.close();
  }
})();
