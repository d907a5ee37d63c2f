// The page: its views, its theme, its key, and the feed of the fleet.

import { Refused, ask, events, forget, keep, key } from "./api.js";
import { byId, say } from "./dom.js";
import { announce, show } from "./fleet.js";
import { readModels } from "./playground.js";

const AGAIN_MS = 1000;
const SILENT_MS = 5000;
const VIEWS = ["fleet", "playground"];
const THEMES = ["system", "light", "dark"];
let feed = new AbortController();
let served = "";
let shown = "fleet";

function showConnection(text, kind) {
  say(byId("connection"), text);
  byId("connection").dataset.kind = kind;
}

function askForKey(why) {
  showConnection("no access", "bad");
  say(byId("key-why"), why);
  byId("key").hidden = false;
}

async function watch() {
  const own = new AbortController();
  feed = own;
  let silence;
  let why = "not connected, trying again";
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => own.abort(), SILENT_MS);
  };
  try {
    heard();
    for await (const state of events(await ask("/admin/feed", { signal: own.signal }))) {
      heard();
      byId("key").hidden = true;
      showConnection("live", "good");
      show(state);
      follow(state);
    }
  } catch (error) {
    if (error instanceof Refused && [401, 403].includes(error.status)) {
      askForKey(error.message);
      return;
    }
    if (error instanceof Refused && feed === own) why = `${error.message}; trying again`;
  } finally {
    clearTimeout(silence);
  }
  if (feed !== own) return;
  showConnection(why, "bad");
  setTimeout(() => feed === own && watch(), AGAIN_MS);
}

// A model came or went: the playground has another choice.
function follow({ workers }) {
  const names = [...new Set(workers.map((each) => each.model))].sort().join("\n");
  if (names !== served) readModels();
  served = names;
}

function begin() {
  byId("forget").hidden = !key();
  feed.abort();
  watch();
  readModels();
}

function showView() {
  const view = VIEWS.find((each) => location.hash === `#${each}`) ?? shown;
  shown = view;
  for (const each of VIEWS) {
    byId(`view-${each}`).hidden = each !== view;
    if (each === view) byId(`to-${each}`).setAttribute("aria-current", "page");
    else byId(`to-${each}`).removeAttribute("aria-current");
  }
}

function showTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  say(byId("theme"), `Theme: ${theme}`);
}

byId("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  localStorage.setItem("studiofleet-theme", next);
  showTheme(next);
});
byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(byId("key-value").value.trim());
  byId("key-value").value = "";
  begin();
});
byId("forget").addEventListener("click", () => {
  forget();
  location.reload();
});
addEventListener("hashchange", showView);

const kept = localStorage.getItem("studiofleet-theme");
showTheme(THEMES.includes(kept) ? kept : "system");
showView();
announce("");
begin();
