// Opens reports in a browser, on a phone and a desk, in light and dark, looks for errors with
// axe-core, and writes pictures of them:
//   npm install playwright-core axe-core
//   CHROMIUM=/usr/bin/chromium node tests/look_at_reports.mjs report.html ...
// SELECT="#accuracy" takes a picture of a part alone, at twice the resolution.
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const load = createRequire(path.join(process.cwd(), "package.json"));
const { chromium } = load("playwright-core");
const axe = load.resolve("axe-core/axe.min.js");
const part = process.env.SELECT;
const widths = part ? { desk: 560 } : { phone: 360, desk: 1280 };
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
let problems = 0;
const complain = (where, what) => (problems++, console.log(`${where}: ${what}`));

for (const file of process.argv.slice(2)) {
  for (const [device, width] of Object.entries(widths)) {
    for (const colorScheme of part ? ["light"] : ["light", "dark"]) {
      const where = `${path.basename(file, ".html")}-${device}-${colorScheme}`;
      const context = await browser.newContext({
        viewport: { width, height: 800 },
        deviceScaleFactor: part ? 2 : 1,
        colorScheme,
        offline: true,
      });
      const page = await context.newPage();
      page.on("console", (message) => complain(where, `console: ${message.text()}`));
      page.on("pageerror", (error) => complain(where, `error: ${error}`));
      page.on("requestfailed", (request) => complain(where, `asked for ${request.url()}`));
      page.on("dialog", (dialog) => (complain(where, "a script ran"), dialog.dismiss()));
      await page.goto(pathToFileURL(path.resolve(file)).href);
      const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wider > 0) complain(where, `${wider} pixels wider than the screen`);
      // Room around a part, and no table that nobody can open.
      const alone = `${part} { margin: 0; border: 0; padding: 1rem } details { display: none }`;
      if (part) await page.addStyleTag({ content: alone });
      const target = part ? page.locator(part) : page;
      await target.screenshot({ path: `${where}.png`, fullPage: !part });
      await page.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
      const opened = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (opened > 0) complain(where, `${opened} pixels wider than the screen, with tables`);
      await page.addScriptTag({ path: axe });
      const { violations, passes } = await page.evaluate(() => window.axe.run());
      for (const each of violations) {
        complain(where, `${each.id}: ${each.help} (${each.nodes.map((node) => node.target).join("; ")})`);
      }
      console.log(`${where}: ${passes.length} rules of axe-core passed, ${violations.length} violated`);
      await context.close();
    }
  }
}
await browser.close();
console.log(problems ? `${problems} problems` : "no problem");
process.exit(problems ? 1 : 0);
