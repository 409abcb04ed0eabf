// SPDX-License-Identifier: Apache-2.0
// The page of an admin endpoint. It asks /v1/page every 5 s, which answers with so much as is shown,
// whatever the size of the pool. Texts of the pool (names, keys, messages) become text nodes only.

const INTERVAL_MS = 5000;
const PATIENCE_S = 15; // for an answer; a reset waits 2.5 s for its proof
const POINTS = 360; // of an hour, 10 s each
const ROWS = 10; // of a list, as page.cc sends them

const byId = (id) => document.getElementById(id);
const lists = {
  owners: { from: 0, find: "" },
  namespaces: { from: 0, find: "" },
  engines: { from: 0, find: "" },
};
const history = { of: "", first: 0, points: [] };
let paused = false;
let timer = 0;
let running = false;
let again = false;
let next = start; // is due when the timer ends: `start`, then `update`; null: the login is needed
let endsAt = Infinity; // of the login, by performance.now()
let answeredAt = null;

// ---- text

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit + 1 < SIZES.length) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${SIZES[unit]}`;
}

const number = (count) => count.toLocaleString("en");
const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;
const rate = (count) => `${bytes(count)}/s`;
const counted = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

function micros(us) {
  if (us < 1000) return `${us} us`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 10000 ? 1 : 0)} ms`;
  return `${(us / 1e6).toFixed(1)} s`;
}

function used(part, whole) {
  return whole === 0 ? "none" : `${bytes(part)} of ${bytes(whole)} (${percent(part / whole)})`;
}

// ---- elements

// Changes nothing where the text is the same, so that a screen reader reads news only.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Shows rows in a table's body. Rows with the same key remain the same elements, so that the focus
// and a selection survive an update. `cells` makes the cells of a new row; `update` fills them. Keys
// may be equal: two owners in turn at one address, two namespaces that read the same.
function fillRows(body, rows, key, cells, update, none) {
  const before = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const focused = document.activeElement;
  const counts = new Map();
  const shown = rows.map((row) => {
    const count = (counts.get(key(row)) ?? 0) + 1;
    counts.set(key(row), count);
    const name = `${count} ${key(row)}`;
    let element = before.get(name);
    if (element === undefined) {
      element = make("tr", { role: "row" }, ...cells(row));
      element.dataset.key = name;
    }
    before.delete(name);
    element.shown = row;
    update(element.children, row);
    return element;
  });
  for (const element of before.values()) element.remove();
  shown.forEach((element, i) => {
    if (body.children[i] !== element) body.insertBefore(element, body.children[i] ?? null);
  });
  if (rows.length === 0) {
    const columns = body.parentElement.tHead.rows[0].cells.length;
    const cell = make("td", { role: "cell", colspan: columns }, none);
    const element = make("tr", { role: "row" }, cell);
    element.dataset.key = "";
    body.append(element);
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus();
}

function cell(label, kind = "") {
  const attributes = { role: "cell", "data-label": label };
  if (kind !== "") attributes.class = kind;
  return make("td", attributes);
}

// Makes a cell with a button, which acts on what its row shows at that time.
function buttonCell(text, label, act) {
  const button = make("button", { type: "button", "aria-label": label }, text);
  button.addEventListener("click", () => act(button.closest("tr").shown));
  const element = cell("Action");
  element.append(button);
  return element;
}

// ---- requests

class Answered extends Error {} // by the endpoint, not by the browser in its place
class Refused extends Answered {}

async function ask(path, body) {
  const options = { headers: { Accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout(1000 * PATIENCE_S) };
  if (body !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  let answer = {};
  try {
    response = await fetch(path, options);
    answer = await response.json();
  } catch (error) {
    // A refusal without JSON is a refusal all the same.
    if (response === undefined || response.ok) {
      throw new Error(error.name === "TimeoutError" ? `no answer within ${PATIENCE_S} s` : "it cannot be reached");
    }
  }
  if (response.ok) return answer;
  const text = answer.detail || answer.error || `the endpoint answers ${response.status}`;
  if (response.status === 401) throw new Refused(text);
  throw new Answered(text);
}

// ---- the login

function showLogin() {
  next = null;
  clearTimeout(timer);
  byId("confirm").close("");
  byId("content").hidden = true;
  byId("controls").hidden = true;
  byId("trouble").hidden = true;
  byId("login").hidden = false;
  byId("bearer").focus();
}

function begin(login) {
  endsAt = login.needed ? performance.now() + 1000 * login.seconds_left : Infinity;
  byId("login").hidden = true;
  byId("controls").hidden = false;
  byId("logout").hidden = !login.needed;
  next = update;
  update();
}

async function start() {
  try {
    const login = await ask("/v1/login");
    if (login.logged_in) begin(login);
    else showLogin();
  } catch (error) {
    showTrouble(error);
    schedule();
  }
}

byId("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = byId("bearer");
  const bearer = field.value.trim().replace(/^Bearer\s+/, "");
  setText(byId("login-error"), "");
  try {
    const login = await ask("/v1/login", { bearer });
    field.value = "";
    begin({ needed: true, seconds_left: login.seconds_left });
    byId("main").focus();
  } catch (error) {
    setText(byId("login-error"), error.message);
    field.focus();
  }
});

byId("logout").addEventListener("click", async () => {
  try {
    await ask("/v1/logout", {});
    history.points = [];
    showLogin();
  } catch (error) {
    say(error.message, "bad");
  }
});

// ---- messages and confirmations

function say(text, kind) {
  byId("notice").className = `notice ${kind}`;
  byId("notice").hidden = false;
  setText(byId("message"), text);
}

byId("notice-close").addEventListener("click", () => {
  byId("notice").hidden = true;
  setText(byId("message"), "");
});

function showTrouble(error) {
  const trouble = byId("trouble");
  trouble.hidden = false;
  const since = answeredAt === null ? "" : " What is shown below is older.";
  const what = error instanceof Answered ? "The admin endpoint cannot show the pool" : "The admin endpoint does not answer";
  setText(trouble, `${what}: ${error.message}. The page asks again.${since}`);
  document.title = "! kvcove";
}

// Returns whether the person agrees. `lost` says what is lost, a paragraph each.
function confirmed(title, lost, yes) {
  const dialog = byId("confirm");
  byId("confirm-title").textContent = title;
  byId("confirm-text").replaceChildren(...lost.map((text) => make("p", {}, text)));
  byId("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

byId("confirm-yes").addEventListener("click", () => byId("confirm").close("yes"));
byId("confirm-no").addEventListener("click", () => byId("confirm").close(""));

async function act(path, body, done) {
  try {
    const answer = await ask(path, body);
    say(done(answer), "good");
  } catch (error) {
    if (error instanceof Refused) return showLogin();
    say(error.message, "bad");
  }
  update();
}

// ---- the parts of the page

function showAdvice(advice) {
  const list = byId("advice");
  list.hidden = advice.length === 0;
  if (list.dataset.texts === advice.join("\n")) return;
  list.dataset.texts = advice.join("\n");
  list.replaceChildren(...advice.map((text) => make("li", {}, text)));
}

function showNow(pool, resets) {
  setText(byId("owners-now"), `${number(pool.live)} of ${number(pool.owners)} live`);
  setText(byId("memory-now"), used(pool.capacity - pool.free, pool.capacity));
  byId("memory-bar").value = pool.capacity === 0 ? 0 : 1 - pool.free / pool.capacity;
  const aside = pool.aside === 0 ? "" : `, ${pool.aside} of ${counted(pool.disks, "disk", "disks")} set aside`;
  setText(byId("disk-now"), used(pool.disk_used, pool.disk_capacity) + aside);
  byId("disk-bar").value = pool.disk_capacity === 0 ? 0 : pool.disk_used / pool.disk_capacity;
  byId("disk-bar").hidden = pool.disk_capacity === 0;
  setText(byId("objects-now"), number(pool.objects));
  const unproven = resets.not_proven === 0 ? "" : `, ${number(resets.not_proven)} not proven`;
  setText(byId("resets-now"), number(resets.all) + unproven);
}

// Draws one value of the points. A gap in the line: the value is not known, or nothing was asked.
function draw(name, title, index, text, top) {
  const points = history.points.filter((point) => point[index] !== null);
  const chart = byId(`chart-${name}`);
  if (points.length === 0) {
    chart.replaceChildren();
    setText(byId(`text-${name}`), "nothing yet");
    chart.setAttribute("aria-label", `${title}: nothing yet`);
    return;
  }
  const values = points.map((point) => point[index]);
  const most = Math.max(...values);
  const scale = 60 / (top ?? (most > 0 ? most : 1));
  const end = history.points.at(-1)[0];
  let path = "";
  let pen = "M";
  for (const point of history.points) {
    if (point[index] === null) {
      pen = "M";
      continue;
    }
    const x = 360 - (end - point[0]) / 10;
    const y = 62 - point[index] * scale;
    // A point without a neighbour is a short line.
    path += pen === "M" ? `M${(x - 1).toFixed(1)} ${y.toFixed(1)}L` : "L";
    path += `${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  }
  let line = chart.firstChild;
  if (line === null) {
    line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    chart.append(line);
  }
  line.setAttribute("d", path);
  const summary = `last ${text(values.at(-1))}, lowest ${text(Math.min(...values))}, highest ${text(most)}`;
  setText(byId(`text-${name}`), summary);
  chart.setAttribute("aria-label", `${title} in the last hour: ${summary}`);
}

function showHistory(news) {
  const continues = news.of === history.of && news.first === history.first + history.points.length;
  if (continues) history.points.push(...news.points);
  else history.points = news.points;
  if (!continues) history.first = news.first;
  history.of = news.of;
  const beyond = Math.max(history.points.length - POINTS, 0);
  history.points.splice(0, beyond);
  history.first += beyond;
  draw("ratio", "Hit ratio", 1, percent, 1);
  draw("down", "Bytes read", 2, rate);
  draw("up", "Bytes stored", 3, rate);
  draw("latency", "Latency", 4, micros);
  setText(byId("latency-hint"), news.call === undefined ? "no calls yet" : `p99 of "${news.call}"`);
}

function showMisses(misses) {
  fillRows(byId("misses"), misses, (row) => row.reason,
    () => [cell("Reason"), cell("Meaning", "name"), cell("Last minute", "number"), cell("Last hour", "number")],
    (cells, row) => {
      const bad = row.alarming && row.minute > 0;
      cells[0].className = bad ? "bad" : "";
      setText(cells[0], row.alarming ? `! ${row.reason}` : row.reason);
      setText(cells[1], row.meaning);
      setText(cells[2], number(row.minute));
      setText(cells[3], number(row.hour));
    }, "Nothing was missed.");
}

function showCalls(calls) {
  fillRows(byId("calls"), calls, (row) => row.call,
    () => [cell("Call"), cell("Calls, last hour", "number"), cell("p50 lately", "number"),
      cell("p99 lately", "number"), cell("Worst p99", "number")],
    (cells, row) => {
      setText(cells[0], row.call);
      setText(cells[1], number(row.hour));
      setText(cells[2], micros(row.p50_us));
      setText(cells[3], micros(row.p99_us));
      setText(cells[4], micros(row.worst_us));
    }, "There were no calls.");
}

function versionText(version) {
  const name = version.version === "" ? "without a version" : version.version;
  return `${name}: ${bytes(version.bytes)}${version.dead === true ? " (dead: pruned)" : ""}`;
}

async function reset(row) {
  const size = row.bytes === 0 ? "all its values" : `${bytes(row.bytes)} of values`;
  const lost = [
    `Lost: ${size}, in ${counted(row.versions_all, "weight version", "weight versions")}. Nobody finds them any more, and engines compute them again.`,
    "This cannot be undone. No other namespace is touched.",
  ];
  if (!(await confirmed(`Reset the namespace ${row.namespace}?`, lost, "Reset"))) return;
  await act("/v1/reset", { namespace: row.namespace },
    (answer) => `${row.namespace} is reset, proven in ${Math.ceil(answer.milliseconds)} ms.`);
}

function showNamespaces(list) {
  fillRows(byId("namespaces"), list.rows, (row) => row.namespace,
    (row) => [cell("Namespace", "name"), cell("Bytes", "number"), cell("Weight versions", "name"),
      buttonCell("Reset...", `Reset the namespace ${row.namespace}`, reset)],
    (cells, row) => {
      setText(cells[0], row.namespace);
      setText(cells[1], bytes(row.bytes));
      const texts = row.versions.map(versionText);
      const more = row.versions_all - texts.length;
      if (more > 0) texts.push(`and ${number(more)} more`);
      if (cells[2].dataset.texts === texts.join("\n")) return;
      cells[2].dataset.texts = texts.join("\n");
      cells[2].replaceChildren(make("ul", {}, ...texts.map((text) => make("li", {}, text))));
    }, "No engine has used a namespace yet.");
  const names = [...new Set(list.rows.map((row) => row.namespace))];
  const known = byId("namespace-names");
  if (known.dataset.names !== names.join("\n")) {
    known.dataset.names = names.join("\n");
    known.replaceChildren(...names.map((name) => make("option", { value: name })));
  }
}

async function drain(row) {
  const memory = row.capacity - row.free;
  const disk = row.disk_used === undefined || row.disk_used === 0 ? "" : ` and ${bytes(row.disk_used)} on its disks`;
  const lost = [
    `The owner holds ${counted(row.objects, "value", "values")}, ${bytes(memory)} in memory${disk}. They move to other owners.`,
    `Lost: the pool's room shrinks by ${bytes(row.capacity)} of memory, because this owner takes no new values. A value for which no other owner has room remains here, and is lost if you then stop the owner.`,
    "Cancel the task to let the owner take values again.",
  ];
  if (!(await confirmed(`Drain the owner ${row.owner}?`, lost, "Drain"))) return;
  await act("/v1/drain", { owner: row.owner }, (answer) => `Task ${answer.task} drains ${row.owner}.`);
}

function showOwners(list, drains) {
  fillRows(byId("owners"), list.rows, (row) => row.owner,
    (row) => {
      const cells = [cell("Owner", "name"), cell("State"), cell("Memory", "number"), cell("Disk", "number"), cell("Values", "number")];
      if (drains) cells.push(buttonCell("Drain...", `Drain the owner ${row.owner}`, drain));
      return cells;
    },
    (cells, row) => {
      const names = [row.owner];
      if (row.host !== "") names.push(`host ${row.host}`);
      if (row.tenant !== undefined) names.push(`tenant ${row.tenant}`);
      setText(cells[0], names.join(", "));
      cells[1].className = row.state === "gone" ? "bad" : row.state === "live" ? "good" : "warn";
      setText(cells[1], row.state);
      setText(cells[2], used(row.capacity - row.free, row.capacity));
      const aside = row.aside > 0 ? `, ${row.aside} of ${row.disks} SET ASIDE` : "";
      setText(cells[3], row.disks === undefined ? "none" : used(row.disk_used, row.disk_capacity) + aside);
      cells[3].className = row.aside > 0 ? "number bad" : "number";
      setText(cells[4], number(row.objects));
      if (drains) cells[5].firstChild.disabled = row.state !== "live";
    }, "No owner gives memory to the pool.");
}

function showEngines(list) {
  fillRows(byId("engines"), list.rows, (row) => `${row.namespace}\n${row.engine}`,
    () => [cell("Engine", "name"), cell("Namespace", "name"), cell("Weights", "name"), cell("State"), cell("Processes", "number")],
    (cells, row) => {
      setText(cells[0], row.engine);
      setText(cells[1], row.namespace);
      setText(cells[2], row.version === "" ? "not named" : row.version);
      cells[3].className = row.open ? "good" : "warn";
      setText(cells[3], row.open ? "open" : "must reset");
      setText(cells[4], number(row.processes));
    }, "No engine is registered.");
}

const TASK_KINDS = { good: ["done"], bad: ["failed"], warn: ["cancelled"] };

function showTasks(tasks) {
  fillRows(byId("tasks"), tasks, (row) => String(row.id),
    (row) => {
      const progress = cell("Progress", "name");
      progress.append(make("progress", { "aria-label": `Progress of task ${row.id}` }), make("div"));
      return [cell("Task", "name"), cell("State"), progress,
        buttonCell("Cancel", `Cancel task ${row.id}`, () =>
          act("/v1/cancel", { id: String(row.id) }, () => `Task ${row.id} is cancelled.`))];
    },
    (cells, row) => {
      const places = [row.from && `from ${row.from}`, row.to && `to ${row.to}`].filter(Boolean).join(" ");
      setText(cells[0], `${row.id}: ${row.kind} ${places}`.trim());
      const kind = Object.keys(TASK_KINDS).find((name) => TASK_KINDS[name].includes(row.state));
      cells[1].className = kind ?? "";
      setText(cells[1], row.state);
      const [bar, text] = cells[2].children;
      const unfinished = row.state === "queued" || row.state === "running";
      bar.hidden = !unfinished;
      if (row.objects > 0) {
        bar.max = row.objects;
        bar.value = Math.min(row.copied, row.objects);
      }
      const of = row.objects > 0 && unfinished ? ` of ${number(row.objects)}` : "";
      const left = row.left > 0 ? `, ${number(row.left)} left behind` : "";
      const message = row.message === "" ? "" : `. ${row.message}`;
      setText(text, `${number(row.copied)}${of} values copied (${bytes(row.copied_bytes)}) in ${number(Math.round(row.seconds))} s${left}${message}`);
      // The owner of a drain takes values again when its task is cancelled, also when it is done or
      // has failed.
      const drained = row.kind === "drain" && (row.state === "done" || row.state === "failed");
      cells[3].firstChild.disabled = !unfinished && !drained;
    }, "There are no tasks.");
}

// ---- lists that are read in pages and searched

function makeListControls(element) {
  const name = element.dataset.list;
  const find = make("input", { type: "search", id: `${name}-find`, autocomplete: "off", spellcheck: "false" });
  const label = make("label", { for: find.id }, "Find");
  const back = make("button", { type: "button", "aria-label": `Previous ${name}` }, "Previous");
  const next = make("button", { type: "button", "aria-label": `Next ${name}` }, "Next");
  const shown = make("span", { class: "hint", role: "status" });
  element.append(label, find, back, next, shown);
  const list = lists[name];
  list.show = (answer) => {
    list.from = answer.from;
    const last = answer.from + answer.rows.length;
    const of = answer.matching === answer.all ? number(answer.all) : `${number(answer.matching)} found of ${number(answer.all)}`;
    setText(shown, answer.rows.length === 0 ? `none of ${number(answer.all)}` : `${number(answer.from + 1)} to ${number(last)} of ${of}`);
    back.disabled = answer.from === 0;
    next.disabled = last >= answer.matching;
  };
  let typing = 0;
  find.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      list.find = find.value;
      list.from = 0;
      update();
    }, 250);
  });
  const step = (from) => {
    list.from = Math.max(from, 0);
    update();
  };
  back.addEventListener("click", () => step(list.from - ROWS));
  next.addEventListener("click", () => step(list.from + ROWS));
}

document.querySelectorAll(".list-controls").forEach(makeListControls);

// ---- why

byId("why").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = byId("why-answer");
  const query = new URLSearchParams({ key: byId("why-key").value });
  const space = byId("why-namespace").value.trim();
  if (space !== "") query.set("namespace", space);
  try {
    const found = await ask(`/v1/key?${query}`);
    const texts = found.in.map(whyText);
    if (texts.length === 0) texts.push("No engine has registered a namespace that could have this key.");
    answer.replaceChildren(...texts.map((text) => make("li", {}, text)));
  } catch (error) {
    if (error instanceof Refused) return showLogin();
    answer.replaceChildren(make("li", { class: "error" }, error.message));
  }
});

function whyText(entry) {
  const place = entry.version === "" ? entry.namespace : `${entry.namespace} (version ${entry.version})`;
  let text = `${place}: `;
  if (entry.found) {
    const size = entry.bytes === undefined ? "found" : `found, ${bytes(entry.bytes)}`;
    text += `${size}, at ${entry.locations.map((at) => `${at.owner} (${at.tier})`).join(", ")}`;
  } else if (entry.away !== undefined) {
    text += `nobody knows now: ${entry.away}`;
  } else {
    text += `not found: ${entry.reason}`;
    if (entry.started_seconds_ago !== undefined) {
      text += ` ${Math.round(entry.started_seconds_ago)} s ago; it does not know what was there before`;
    }
  }
  if (entry.last_miss !== undefined) {
    const miss = entry.last_miss;
    text += `. Missed ${counted(miss.count, "time", "times")} lately, last ${Math.round(miss.seconds_ago)} s ago: ${miss.reason}`;
  }
  return `${text}.`;
}

// ---- updates

function show(page) {
  document.body.classList.toggle("no-drains", !page.drains);
  const verdict = byId("verdict");
  verdict.className = `verdict ${page.health}`;
  setText(verdict, page.verdict);
  document.title = page.health === "good" ? "kvcove" : "! kvcove";
  showAdvice(page.advice ?? []); // an endpoint that was rolled back has none
  showNow(page.pool, page.resets);
  showHistory(page.history);
  showMisses(page.misses);
  showCalls(page.calls);
  showNamespaces(page.namespaces);
  showOwners(page.owners, page.drains);
  showEngines(page.engines);
  if (page.drains) showTasks(page.tasks);
  for (const [name, list] of Object.entries(lists)) list.show(page[name]);
  byId("trouble").hidden = true;
  byId("content").hidden = false;
}

function showAge() {
  if (answeredAt === null) return;
  const seconds = Math.round((performance.now() - answeredAt) / 1000);
  setText(byId("age"), paused || seconds > 10 ? `${seconds} s old` : "updated every 5 s");
}

// One request at a time; one that is asked for meanwhile follows.
async function update() {
  clearTimeout(timer);
  if (running) {
    again = true;
    return;
  }
  if (performance.now() >= endsAt) {
    showLogin();
    return;
  }
  running = true;
  again = false;
  const query = new URLSearchParams();
  if (history.points.length > 0) {
    query.set("points_from", history.first + history.points.length);
    query.set("points_of", history.of);
  }
  for (const [name, list] of Object.entries(lists)) {
    if (list.from > 0) query.set(`${name}_from`, list.from);
    if (list.find !== "") query.set(`${name}_find`, list.find);
  }
  let refused = false;
  try {
    const page = await ask(`/v1/page?${query}`);
    // After a logout nothing of the pool is shown, also if it was asked for before.
    if (next === update) {
      answeredAt = performance.now();
      // A list that was searched meanwhile shows the newer answer only.
      if (!again) show(page);
      else showHistory(page.history);
    }
  } catch (error) {
    refused = error instanceof Refused;
    if (!refused && next === update) showTrouble(error);
  }
  running = false;
  showAge();
  if (next !== update) return;
  if (refused) showLogin();
  else if (again) update();
  else schedule();
}

function schedule() {
  clearTimeout(timer);
  if (!paused && !document.hidden && next !== null) timer = setTimeout(next, INTERVAL_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  showAge();
  if (paused) clearTimeout(timer);
  else update();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (!paused && next !== null) next();
});

setInterval(showAge, 1000);
start();
