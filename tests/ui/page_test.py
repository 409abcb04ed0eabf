#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of the admin endpoint in headless Chromium: tests/ui/page_test.py KVCOVE PAGE_POOL TRACE OUT

Every control is used, by mouse or keyboard. OUT gets pictures, which a person looks at, and the figures that a busy machine may change.
"""

import json
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from browser import Browser, Tab

KVCOVE = PAGE_POOL = TRACE = ""
OUT = pathlib.Path()
BROWSER = None
KEPT = []
CONTROLS = "button, input, a[href], summary, select, textarea"
# Returns the visible controls of the page, each by what a person calls it.
VISIBLE = f"""[...document.querySelectorAll('{CONTROLS}')].filter(e => e.checkVisibility() && !e.disabled)
  .map(e => e.id || e.getAttribute('aria-label') || e.textContent.trim())"""
FOCUSED = "(() => { const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.textContent.trim(); })()"
# Returns the least contrast of texts with what is behind them.
CONTRAST = """(() => {
  const light = c => { const v = c / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const behind = e => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  let worst = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || e.disabled || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const a = luminance(parts(getComputedStyle(e).color)), b = luminance(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 120)];
  }
  return worst;
})()"""


def port():
    """One that nobody uses, kept from other tests by a socket that is bound to it (run_test.py)."""
    while True:
        number = random.randrange(10000, 30000)
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        KEPT.append(probe)
        return number


class PageTest(unittest.TestCase):
    """A page, and what no test of it may see."""

    allowed_errors = ()

    def open(self, url, **size):
        tab = Tab(BROWSER, **size)
        self.addCleanup(tab.close)
        self.addCleanup(self.check, tab, url)
        tab.open(url)
        return tab

    def check(self, tab, url):
        strange = [error for error in tab.errors() if not any(part in error for part in self.allowed_errors)]
        self.assertEqual(strange, [])
        self.assertEqual([one for one in tab.asked() if not one.startswith(url)], [], "requests to another origin")

    def shown(self, tab, seconds=120):
        self.assertTrue(tab.becomes("!document.getElementById('content').hidden", seconds), tab.text("body"))

    def check_names(self, tab):
        """What a screen reader says of the page."""
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]:
            role = node.get("role", {}).get("value")
            if node.get("ignored") or role not in (
                "button",
                "textbox",
                "searchbox",
                "combobox",
                "table",
                "image",
                "img",
                "progressbar",
                "dialog",
                "region",
            ):
                continue
            self.assertTrue(node.get("name", {}).get("value"), node)
        self.assertEqual(tab.evaluate("document.querySelectorAll('h1').length"), 1)
        self.assertEqual(tab.evaluate("document.documentElement.lang"), "en")


class LargePoolTest(PageTest):
    """1,000 owners and 10,000 namespaces."""

    def setUp(self):
        self.pool = subprocess.Popen(
            [PAGE_POOL, str(port()), "1000", "10000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(self.end)
        self.url = self.pool.stdout.readline().strip()
        self.assertTrue(self.url.startswith("http://127.0.0.1:"), self.url)

    def end(self):
        self.pool.stdin.close()
        self.pool.stdout.close()
        self.pool.wait()

    def test_it_shows_the_pool(self):
        tab = self.open(self.url)
        self.shown(tab)
        self.assertIn("1 of 1000 owners is gone", tab.text("#verdict"))
        self.assertIn("1 of 1998 disks is set aside", tab.text("#verdict"))
        self.assertIn("Twice the memory would bring 13 points of hit ratio", tab.text("#advice"))
        self.assertIn("999 of 1,000 live", tab.text("#owners-now"))
        self.assertIn("TiB", tab.text("#memory-now"))
        self.assertRegex(tab.text("#text-ratio"), r"last \d+ %, lowest \d+ %, highest \d+ %")
        self.assertRegex(tab.text("#text-down"), r"GiB/s")
        self.assertRegex(tab.text("#text-latency"), r"us")
        self.assertIn("owner gone", tab.text("#misses"))
        self.assertIn("lookup", tab.text("#calls"))
        self.assertIn("gone", tab.text("#owners tr"))
        self.assertIn("step-101", tab.text("#namespaces"))
        self.assertIn("must reset", tab.text("#engines"))
        self.check_names(tab)
        tab.picture(OUT / "light.png")
        tab.scheme("dark")
        tab.picture(OUT / "dark.png")
        tab.scheme("light")

    def test_its_text_can_be_read_in_light_and_dark(self):
        tab = self.open(self.url)
        self.shown(tab)
        backs = []
        for scheme in ("light", "dark"):
            tab.scheme(scheme)
            ratio, where = tab.evaluate(CONTRAST)
            self.assertGreaterEqual(ratio, 4.5, f"{scheme}: {where}")
            backs.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        self.assertNotEqual(*backs)

    def test_it_fits_a_phone(self):
        tab = self.open(self.url, width=360, height=740)
        tab.resize(360, 740, phone=True)
        self.shown(tab)
        self.assertLessEqual(tab.evaluate("document.documentElement.scrollWidth"), 360)
        tab.click("#owners tr:nth-child(3) button")
        self.assertTrue(tab.becomes("document.getElementById('confirm').open"))
        tab.picture(OUT / "phone-dialog.png", whole=False)
        tab.press("Escape")
        self.assertTrue(tab.becomes("!document.getElementById('confirm').open"))
        tab.picture(OUT / "phone.png")

    def test_its_lists_are_read_in_pages_and_searched(self):
        tab = self.open(self.url)
        self.shown(tab)
        for name, all_rows, found in (
            ("owners", "1,000", ("node0999", "10.0.3.231:7401")),
            ("namespaces", "10,000", ("model-9876", "model-9876")),
            ("engines", "200", ("engine-77", "engine-77")),
        ):
            status = f'[data-list="{name}"] [role="status"]'
            buttons = f'[data-list="{name}"] button'
            self.assertEqual(tab.text(status), f"1 to 10 of {all_rows}")
            first = tab.text(f"#{name} tr")
            self.assertTrue(tab.evaluate(f"document.querySelector('{buttons}').disabled"))
            tab.click(f"{buttons}:last-of-type")
            self.assertTrue(tab.becomes(f"document.querySelector('{status}').textContent === '11 to 20 of {all_rows}'"))
            self.assertNotEqual(tab.text(f"#{name} tr"), first)
            tab.click(buttons)
            self.assertTrue(tab.becomes(f"document.querySelector('{status}').textContent === '1 to 10 of {all_rows}'"))
            tab.click(f"#{name}-find")
            tab.type(found[0])
            self.assertTrue(
                tab.becomes(f"document.querySelector('{status}').textContent.startsWith('1 to 1 of 1 found')")
            )
            self.assertIn(found[1], tab.text(f"#{name} tr"))
            # The row is still there, and the field has the focus, after further updates.
            before = len(tab.asked())
            self.assertTrue(self.updates(tab, before, 2))
            self.assertEqual(tab.evaluate(FOCUSED), f"{name}-find")
            self.assertIn(found[1], tab.text(f"#{name} tr"))

    def updates(self, tab, before, count):
        """Wait until the page has asked so often again."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if sum("/v1/page" in url for url in tab.asked()[before:]) >= count:
                return True
            time.sleep(0.05)
        return False

    def test_a_reset_names_what_is_lost(self):
        tab = self.open(self.url)
        self.shown(tab)
        name = tab.text("#namespaces td")
        tab.click("#namespaces button")
        self.assertTrue(tab.becomes("document.getElementById('confirm').open"))
        self.assertEqual(tab.text("#confirm-title"), f"Reset the namespace {name}?")
        self.assertRegex(tab.text("#confirm-text"), r"Lost: [\d.]+ GiB of values, in 2 weight versions")
        self.assertIn("cannot be undone", tab.text("#confirm-text"))
        self.assertEqual(tab.evaluate(FOCUSED), "confirm-no", "Enter alone must lose nothing")
        tab.picture(OUT / "dialog.png", whole=False)
        tab.press("Escape")
        self.assertTrue(tab.becomes("!document.getElementById('confirm').open"))
        tab.click("#namespaces button")
        self.assertTrue(tab.becomes("document.getElementById('confirm').open"))
        tab.click("#confirm-no")
        self.assertTrue(tab.becomes("!document.getElementById('confirm').open"))
        self.assertFalse(any("/v1/reset" in url for url in tab.asked()))
        tab.click("#namespaces button")
        self.assertTrue(tab.becomes("document.getElementById('confirm').open"))
        tab.click("#confirm-yes")
        self.assertEqual(self.pool.stdout.readline(), f"reset {name}\n")
        self.assertTrue(tab.becomes("document.getElementById('message').textContent !== ''"))
        self.assertIn(f"{name} is reset, proven", tab.text("#message"))
        # The button is far below the top of the page, and the message is in sight all the same.
        place = "document.getElementById('notice').getBoundingClientRect()"
        self.assertTrue(tab.evaluate(f"window.scrollY > 500 && {place}.top >= 0 && {place}.bottom < window.innerHeight"))
        tab.click("#notice-close")
        self.assertTrue(tab.evaluate("document.getElementById('notice').hidden"))

    def test_namespaces_that_read_the_same_have_a_row_each(self):
        tab = self.open(self.url)
        self.shown(tab)
        tab.click("#namespaces-find")
        tab.type("twin:model")
        status = '[data-list="namespaces"] [role="status"]'
        self.assertTrue(tab.becomes(f"document.querySelector('{status}').textContent.startsWith('1 to 2 of 2 found')"))
        self.assertTrue(self.updates(tab, len(tab.asked()), 3))
        self.assertEqual(tab.evaluate("document.querySelectorAll('#namespaces tr').length"), 2)

    def test_an_endpoint_that_hangs_does_not_look_well(self):
        self.allowed_errors = ("ERR_",)
        tab = self.open(self.url)
        self.shown(tab)
        self.pool.send_signal(signal.SIGSTOP)
        self.assertTrue(tab.becomes("!document.getElementById('trouble').hidden"))
        self.assertIn("no answer within 15 s", tab.text("#trouble"))
        self.assertEqual(tab.evaluate("document.title"), "! kvcove")
        self.pool.send_signal(signal.SIGCONT)
        self.assertTrue(tab.becomes("document.getElementById('trouble').hidden"))

    def test_it_asks_again_after_a_failed_start(self):
        tab = self.open("about:blank")
        tab.call("Page.addScriptToEvaluateOnNewDocument", source="""
            window.fails = true;
            const real = window.fetch;
            window.fetch = (...words) => window.fails ? Promise.reject(new TypeError()) : real(...words);""")  # fmt: skip
        tab.open(self.url)
        self.assertTrue(tab.becomes("document.getElementById('trouble')?.hidden === false"))
        for hidden in ("true", "false"):
            tab.evaluate(f"""Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}});
                document.dispatchEvent(new Event('visibilitychange')); window.fails = false; 0""")  # fmt: skip
        self.shown(tab)

    def test_a_drain_is_a_task_that_can_be_cancelled(self):
        tab = self.open(self.url)
        self.shown(tab)
        row = "#owners tr:nth-child(3)"
        owner = tab.text(f"{row} td").split(",")[0]
        tab.click(f"{row} button")
        self.assertTrue(tab.becomes("document.getElementById('confirm').open"))
        self.assertEqual(tab.text("#confirm-title"), f"Drain the owner {owner}?")
        self.assertRegex(
            tab.text("#confirm-text"), r"holds [\d,]+ values, [\d.]+ GiB in memory and 700 GiB on its disks"
        )
        self.assertIn("room shrinks by 64.0 GiB", tab.text("#confirm-text"))
        tab.click("#confirm-yes")
        self.assertTrue(tab.becomes("document.querySelector('#tasks progress:not([hidden])') !== null"))
        self.assertIn(f"1: drain from {owner}", tab.text("#tasks"))
        self.assertTrue(tab.becomes("document.querySelector('#tasks progress').value > 0"))
        self.assertRegex(tab.text("#tasks"), r"[\d,]+ of [\d,]+ values copied")
        tab.picture(OUT / "drain.png")
        tab.click("#tasks button")
        self.assertTrue(tab.becomes("document.getElementById('message').textContent === 'Task 1 is cancelled.'"))
        self.assertTrue(tab.becomes("document.querySelector('#tasks').textContent.includes('cancelled')"))
        self.assertTrue(tab.evaluate("document.querySelector('#tasks button').disabled"))

    def test_it_says_why_a_key_is_not_found(self):
        tab = self.open(self.url)
        self.shown(tab)
        tab.click("#why-key")
        tab.type("<img src=x>/key with spaces & more")
        tab.click("#why-namespace")
        tab.type(tab.text("#namespaces td"))
        tab.click("#why [type=submit]")
        self.assertTrue(tab.becomes("document.querySelector('#why-answer li') !== null"))
        self.assertRegex(tab.text("#why-answer"), r"team\d+/model-\d+ \(version step-10\d\): not found: evicted\.")

    def test_updates_can_be_paused(self):
        tab = self.open(self.url)
        self.shown(tab)
        tab.click("#pause")
        self.assertEqual(tab.evaluate("document.getElementById('pause').getAttribute('aria-pressed')"), "true")
        tab.evaluate("new Promise(done => setTimeout(done, 1000))")
        before = len(tab.asked())
        tab.evaluate("new Promise(done => setTimeout(done, 7000))")
        self.assertEqual(tab.asked()[before:], [])
        tab.click("#pause")
        self.assertTrue(self.updates(tab, before, 2))

    def test_every_control_is_reached_by_the_keyboard(self):
        tab = self.open(self.url)
        self.shown(tab)
        tab.click("#pause")  # so that rows remain where they are
        tab.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        tab.call("Page.bringToFront")
        tab.evaluate("document.querySelector('.skip').focus()")
        wanted = set(tab.evaluate(VISIBLE))
        reached = {tab.evaluate(FOCUSED)}
        for _ in range(len(wanted) + 5):
            tab.press("Tab")
            reached.add(tab.evaluate(FOCUSED))
        self.assertEqual(wanted - reached, set())
        # The dialog by keys alone: Enter opens it, Tab moves to the other button, which says what it does.
        tab.evaluate("document.querySelector('#namespaces button').focus()")
        tab.press("Enter")
        self.assertTrue(tab.becomes("document.getElementById('confirm').open"))
        tab.press("Tab")
        self.assertEqual(tab.evaluate(FOCUSED), "confirm-yes")
        tab.press("Escape")
        self.assertTrue(tab.becomes("!document.getElementById('confirm').open"))
        self.assertTrue(tab.evaluate(FOCUSED).startswith("Reset the namespace"), "the focus returns")

    def test_it_costs_little(self):
        tab = self.open("about:blank")
        tab.call("Page.addScriptToEvaluateOnNewDocument", source="""
            window.slow = [];
            new PerformanceObserver(list => list.getEntries().forEach(e => window.slow.push(e.duration)))
              .observe({type: 'longtask', buffered: true});""")  # fmt: skip
        tab.open(self.url)
        self.shown(tab)
        self.assertTrue(self.updates(tab, 0, 5))
        tab.evaluate("new Promise(done => setTimeout(done, 1000))")
        sizes = {one["requestId"]: one["encodedDataLength"] for one in tab.happened("Network.loadingFinished")}
        pages = [
            sizes[one["requestId"]]
            for one in tab.happened("Network.requestWillBeSent")
            if "/v1/page" in one["request"]["url"] and one["requestId"] in sizes
        ]
        # Bytes of an update, every 5 s.
        self.assertLess(max(pages[1:]), 12_500, pages)
        self.assertLess(tab.evaluate("document.querySelectorAll('*').length"), 2000)
        paint = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1")
        figures = {
            "first_paint_ms": round(paint, 1),
            "content_ms": round(tab.evaluate("performance.getEntriesByType('resource').find(e => e.name.includes('/v1/page')).responseEnd"), 1),
            "first_answer_bytes": pages[0],
            "update_bytes": pages[1:],
            "bytes_per_s_while_open": round(sum(pages[1:]) / len(pages[1:]) / 5),
            "long_tasks_ms": tab.evaluate("window.slow"),
        }  # fmt: skip
        print(json.dumps(figures))
        (OUT / "figures.json").write_text(json.dumps(figures) + "\n")

    def check(self, tab, url):
        super().check(tab, self.url if url == "about:blank" else url)


class CredentialsTest(PageTest):
    """`kvcove serve` with credentials."""

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-ui-host-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.command("token", "boss", "--scopes", "admin", "--credentials", "servers.toml", "--output", "boss.toml")
        self.bearer = self.command("token", "--bearer", "boss.toml").stdout.strip()
        self.port = port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.socket = self.directory / "s" / "kvcove.sock"
        self.server = subprocess.Popen(
            [KVCOVE, "--log", "error", "serve", "--socket", str(self.socket), "--memory", "64MiB",
             "--admin", f"127.0.0.1:{self.port}", "--credentials", str(self.directory / "servers.toml")],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.addCleanup(self.end)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        self.fail("serve does not start")

    def end(self):
        self.server.terminate()
        self.server.wait()

    def command(self, *words):
        return subprocess.run([KVCOVE, *words], cwd=self.directory, text=True, capture_output=True, check=True)

    def log_in(self, tab):
        self.assertTrue(tab.becomes("!document.getElementById('login').hidden"), tab.text("body"))
        self.assertTrue(tab.becomes("document.activeElement.id === 'bearer'"))
        tab.type(self.bearer)
        tab.press("Enter")
        self.shown(tab)


class HostTest(CredentialsTest):
    """A pool of one host, and the login."""

    def test_a_login_is_a_cookie_that_no_script_reads(self):
        tab = self.open(self.url)
        self.log_in(tab)
        [cookie] = tab.call("Network.getCookies")["cookies"]
        self.assertEqual(cookie["name"], f"kvcove_login_{self.port}")
        self.assertTrue(cookie["httpOnly"])
        self.assertEqual(cookie["sameSite"], "Strict")
        self.assertLess(abs(cookie["expires"] - time.time() - 8 * 3600), 300)
        self.assertNotIn(cookie["value"], self.bearer)
        self.assertEqual(tab.evaluate("document.cookie + Object.keys(localStorage) + Object.keys(sessionStorage)"), "")
        # It outlives a reload, and ends with the logout.
        tab.open(self.url)
        self.assertTrue(tab.becomes("!document.getElementById('logout').hidden"))
        self.shown(tab)
        tab.click("#logout")
        self.assertTrue(tab.becomes("!document.getElementById('login').hidden"))
        self.assertEqual(tab.call("Network.getCookies")["cookies"], [])
        self.assertEqual(tab.evaluate("document.getElementById('bearer').value"), "")
        tab.picture(OUT / "login.png")

    def test_after_a_logout_nothing_is_shown(self):
        tab = self.open(self.url)
        self.log_in(tab)
        # An answer that is on its way during the logout.
        tab.evaluate("""const real = window.fetch; window.late = 0;
            window.fetch = async (...words) => {
              const answer = await real(...words);
              if (words[0].startsWith('/v1/page')) {
                window.late = 1;
                await new Promise(done => { window.deliver = done; });
                setTimeout(() => { window.late = 2; }, 500);
              }
              return answer;
            }; 0""")
        self.assertTrue(tab.becomes("window.late === 1"))
        tab.click("#logout")
        self.assertTrue(tab.becomes("!document.getElementById('login').hidden"))
        tab.evaluate("window.deliver(); 0")
        self.assertTrue(tab.becomes("window.late === 2"))
        self.assertTrue(tab.evaluate("document.getElementById('content').hidden"))

    def test_it_shows_a_pool_of_one_host_and_resets_it(self):
        tab = self.open(self.url)
        self.log_in(tab)
        self.assertIn("The pool is well: 1 owner", tab.text("#verdict"))
        self.assertFalse(tab.evaluate("document.getElementById('tasks-title').checkVisibility()"), "a host has no tasks")
        # What is stored from now on is in a point of the last hour.
        self.assertTrue(tab.becomes("document.getElementById('text-up').textContent !== 'nothing yet'"))
        subprocess.run(
            [KVCOVE, "--log", "error", "replay", TRACE, "--limit", "100", "--engines", "1", "--json", "--pool", f"unix:{self.socket}"],
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        self.assertTrue(tab.becomes("document.querySelector('#namespaces button') !== null"))
        name = tab.text("#namespaces td")
        self.assertTrue(tab.becomes("/highest .*MiB/.test(document.getElementById('text-up').textContent)"))
        tab.picture(OUT / "host.png")
        tab.click("#namespaces button")
        self.assertTrue(tab.becomes("document.getElementById('confirm').open"))
        self.assertIn(name, tab.text("#confirm-title"))
        tab.click("#confirm-yes")
        self.assertTrue(
            tab.becomes("document.getElementById('message').textContent.includes('is reset, proven')"),
            tab.text("#message"),
        )
        self.assertTrue(tab.becomes("document.getElementById('resets-now').textContent !== '0'"))

    def test_it_says_that_the_endpoint_does_not_answer(self):
        self.allowed_errors = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
        tab = self.open(self.url)
        self.log_in(tab)
        self.end()
        self.assertTrue(tab.becomes("!document.getElementById('trouble').hidden"))
        self.assertIn("does not answer", tab.text("#trouble"))
        self.assertIn("64.0 MiB", tab.text("#memory-now"), "the last figures stay")


class RefusedTest(CredentialsTest):
    """A browser reports an answer of 401 in its console, as here."""

    allowed_errors = ("401",)

    def test_a_wrong_bearer_is_refused(self):
        tab = self.open(self.url)
        self.assertTrue(tab.becomes("document.activeElement.id === 'bearer'"))
        tab.type("boss." + "0" * 64)
        tab.press("Enter")
        self.assertTrue(tab.becomes("document.getElementById('login-error').textContent !== ''"))
        self.assertIn("kvcove token --bearer", tab.text("#login-error"))
        self.assertTrue(tab.evaluate("document.getElementById('content').hidden"))
        self.assertEqual(tab.call("Network.getCookies")["cookies"], [])

    def test_a_token_that_is_struck_off_ends_the_login(self):
        tab = self.open(self.url)
        self.log_in(tab)
        self.command("token", "boss", "--exchange", "--credentials", "servers.toml", "--output", "new.toml")
        self.command("token", "boss", "--strike", "--credentials", "servers.toml")
        self.assertTrue(tab.becomes("!document.getElementById('login').hidden"))


class ClusterTest(PageTest):
    """`kvcove master` with two owners, without credentials."""

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-ui-cluster-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.processes = []
        self.addCleanup(self.end)
        self.master = f"127.0.0.1:{port()}"
        admin = f"127.0.0.1:{port()}"
        self.url = f"http://{admin}/"
        self.start("master", "--listen", self.master, "--admin", admin, "--data", str(self.directory / "m"))
        for name in ("a", "b"):
            self.start("owner", "--master", self.master, "--listen", f"127.0.0.1:{port()}", "--admin", "off",
                       "--memory", "64MiB", "--socket", str(self.directory / name / "s"))  # fmt: skip
        end = time.monotonic() + 120
        while time.monotonic() < end:
            status = subprocess.run(
                [KVCOVE, "admin", "--admin", admin, "status", "--json"], text=True, capture_output=True, check=False
            )
            if status.returncode == 0 and json.loads(status.stdout).get("owners_live") == 2:
                return
            time.sleep(0.05)
        self.fail("the cluster does not start")

    def start(self, *words):
        self.processes.append(subprocess.Popen([KVCOVE, "--log", "error", *words], stdin=subprocess.DEVNULL))

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def test_an_owner_is_drained_and_comes_back(self):
        subprocess.run(
            [KVCOVE, "--log", "error", "replay", TRACE, "--limit", "100", "--engines", "2", "--json", "--pool", f"kvcove://{self.master}"],
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        tab = self.open(self.url)
        self.shown(tab)
        self.assertTrue(
            tab.becomes("document.getElementById('verdict').textContent.startsWith('The pool is well: 2 owners')"),
            tab.text("#verdict"),
        )
        self.assertTrue(
            tab.becomes("document.querySelector('#calls').textContent.includes('renew')"), tab.text("#calls")
        )
        owner = tab.text("#owners td").split(",")[0]
        tab.click("#owners button")
        self.assertTrue(tab.becomes("document.getElementById('confirm').open"))
        tab.click("#confirm-yes")
        self.assertTrue(tab.becomes("document.querySelector('#tasks').textContent.includes('drain')"))
        self.assertTrue(
            tab.becomes("/done|failed/.test(document.querySelector('#tasks').textContent)"), tab.text("#tasks")
        )
        self.assertIn(owner, tab.text("#tasks"))
        self.assertTrue(tab.becomes("document.querySelector('#owners').textContent.includes('draining')"))
        tab.picture(OUT / "cluster.png")
        tab.click("#tasks button:not(:disabled)")
        self.assertTrue(tab.becomes("!document.querySelector('#owners').textContent.includes('draining')"))


if __name__ == "__main__":
    KVCOVE, PAGE_POOL, TRACE = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:4])
    OUT = pathlib.Path(sys.argv[4])
    OUT.mkdir(parents=True, exist_ok=True)
    BROWSER = Browser()
    try:
        program = unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2, exit=False)
    finally:
        BROWSER.close()
    sys.exit(not program.result.wasSuccessful())
