"""`swarm web` in a real browser. `LAB_AXE` names a file with axe-core, to check accessibility.

    apt-get install chromium; npm install axe-core
    LAB_AXE=node_modules/axe-core/axe.min.js python3 -m lab web
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from . import cases
from .chromium import Chromium
from .rig import Rig, wait_until

HOSTILE = "x\u202e<img src=x onerror=alert(1)>"
AXE = "LAB_AXE"


def page(scene, *flags: str):
    """Returns the case in which `scene` has a rig and a browser with its page."""
    def case() -> list[str]:
        with Rig() as rig, Chromium() as browser:
            rig.make_repo()
            said = open(rig.home / "web.said", "w+")
            web = subprocess.Popen([rig.binary, "web", *flags], env=rig.env, cwd=rig.repo, text=True,
                                   stdout=subprocess.PIPE, stderr=said)
            try:
                browser.show("light", 1280)
                browser.address = web.stdout.readline().strip()
                browser.open(browser.address)
                findings = scene(rig, browser)
            except AssertionError as error:
                said = browser.value("[...document.querySelectorAll('#done, #ask[open], #link')].map((one) => one.textContent).join(' | ')")
                raise AssertionError(f"{error}; the page says {said!r}") from error
            finally:
                web.terminate()
                code = web.wait(10)
            return findings + browser.problems + ([] if code == 0 else [f"'swarm web' ended with {code}"])
    return case


def spawn(rig: Rig, name: str, *command: str, flags: tuple = ()) -> None:
    """Starts a worker that executes this command in the repository."""
    rig.must("spawn", "--name", name, *flags, "--", *command, cwd=rig.repo)


def row(name: str) -> str:
    return f"[...document.querySelectorAll('.row')].find((row) => row.querySelector('.name').textContent === {name!r})"


def shows(rig: Rig, browser: Chromium) -> list[str]:
    """A worker appears, its window is shown, and its end is told. Hostile output is text."""
    browser.until("document.querySelector('.empty')")
    findings = [] if browser.value("location.href").endswith("/#/") else ["the code stays in the address"]
    rig.start_tmux()
    spawn(rig, "w", "sh", "-c", f"printf '%s' '{HOSTILE}'; exec sleep 600", flags=rig.tmux_flags)
    browser.until(row("w") + "?.querySelector('.state').textContent === 'running'")
    browser.value(row("w") + ".click()")
    browser.until("document.querySelector('.term')?.textContent.includes('onerror')")
    shown = browser.value("document.querySelector('.term').textContent")
    findings += [] if "x\u2039202e\u203a<img src=x" in shown else [f"window: {shown!r}"]
    findings += ["markup of a worker is in the page"] if browser.value("document.querySelector('img')") else []
    findings += ["it acts"] if browser.value("document.querySelector('.acts button, .say input')") else []
    rig.must("kill", "w")
    browser.until(row("w") + "?.querySelector('.state').textContent === 'stopped'")
    # The page asks for the log in place of the window, which is refused once the worker is gone.
    browser.until("performance.getEntriesByType('resource').some((one) => one.name.includes('/v1/worker/w/log') && one.responseStatus === 200)")
    rig.must("clean", "w")
    browser.until("document.querySelector('.alert')?.textContent.includes('gone')")
    return findings


def answers(rig: Rig, browser: Chromium) -> list[str]:
    """A question is answered and a worker stopped with the keyboard alone."""
    script = f"'{rig.binary}' ask 'Which colour?' --option red --option blue --wait > answer; exec sleep 600"
    spawn(rig, "w", "sh", "-c", script)
    browser.until("document.title.startsWith('(1)')")
    browser.press("w")
    browser.until("document.querySelector('.request .options button')")
    browser.press("a")
    browser.press("Enter")
    browser.until("document.activeElement.value === 'red'")
    browser.press("Enter")
    browser.until("document.title === 'swarm'")
    # The page may know before the worker has written it.
    file = Path(rig.repo) / "answer"
    wait_until(lambda: file.read_text().endswith("\n"), 10, "the worker has the answer")
    answer = file.read_text()
    findings = [] if answer == "red\n" else [f"answer: {answer!r}"]
    browser.value("document.activeElement.blur()")
    browser.press("x")
    browser.until("document.querySelector('dialog').open")
    browser.press("Escape")
    browser.until("!document.querySelector('dialog').open")
    findings += [] if rig.row("w") else ["Escape is no consent"]
    browser.press("x")
    browser.until("document.querySelector('dialog').open")
    # The end of a question is told after the next one has been asked.
    browser.value("document.querySelector('dialog').close(); document.querySelector('.acts .danger').click()")
    browser.press("Tab")
    browser.press("Enter")
    browser.until(row("w") + "?.querySelector('.state').textContent === 'stopped'")
    return findings


WORKFLOW = """workflow:
  name: Work
  nodes:
    - id: owner-intake
      role: owner
      human-colab: true
      work:
        - |
          ```sh
          echo x > $SWARM_RECORD/x.md; swarm flow emit --to owner-close --artifact $SWARM_RECORD/x.md
          ```
    - id: owner-close
      role: owner
      work:
        - |
          ```sh
          swarm flow emit --close
          ```
  edges:
    - {from: owner-intake, to: owner-close}
"""


def gates(rig: Rig, browser: Chromium) -> list[str]:
    """The gate of a flow is declined and then approved with the keyboard alone."""
    work = WORKFLOW.replace("swarm flow", f"{rig.binary} flow")
    for name, text in (("w.yaml", work), ("swarm.toml", "[flow]\nagent = 'shell'\n")):
        (Path(rig.repo) / name).write_text(text)
    rig.must("trust", "--yes", cwd=rig.repo)
    new = ("flow", "new", "demo", "--workflow", "w.yaml", "--consent", "full-access", "--start")
    flow = rig.must(*new, cwd=rig.repo).out.strip().splitlines()[-1]
    rig.must("flow", "run", flow, "--wait", cwd=rig.repo)
    browser.until("document.title.startsWith('(1)')")
    browser.press("w")
    browser.until("document.querySelector('.gate button')")
    asked = browser.value("document.querySelector('.gate').textContent")
    findings = [] if "hands over" in asked and "owner-intake" in asked else [f"gate: {asked!r}"]
    browser.press("a")
    findings += [] if browser.value("document.activeElement.textContent") == "Approve" else ["'a' does not lead to the answer"]
    browser.press("Enter")
    browser.until("document.querySelector('.toast')?.textContent.includes('flow approve')")
    browser.until("!document.querySelector('.gate')?.textContent.includes('hands over')")
    said = rig.must("flow", "requests", flow, cwd=rig.repo).out
    return findings + (["it is not approved"] if "hands over" in said else [])


def other(rig: Rig, browser: Chromium) -> list[str]:
    """What is shown acts on no other worker of the same name."""
    spawn(rig, "w", "sleep", "600")
    browser.until(row("w"))
    browser.press("w")
    browser.value(row("w") + ".click()")
    browser.until("document.querySelector('.acts .danger')")
    browser.value("document.querySelector('.acts .danger').click()")
    browser.until("document.querySelector('dialog').open")
    rig.must("respawn", "w")
    browser.value("document.querySelector('dialog .danger').click()")
    browser.until("document.querySelector('.toast.bad')?.textContent.includes('not the one that was shown')")
    # The browser reports each refusal of the server.
    browser.problems[:] = [problem for problem in browser.problems if "409" not in problem]
    return []


PURE = r"""(async () => {
  const { patch, layers, matches, answer, gate, Board } = await import('/board.js');
  const { clean, age, short } = await import('/text.js');
  const found = [];
  const is = (what, one, other) => { if (JSON.stringify(one) !== JSON.stringify(other)) found.push(`${what}: ${JSON.stringify(one)}`); };
  is('clean', clean('a\u202eb\u001b[1m\u0000\n'), 'a\u2039202e\u203ab\u20391b\u203a[1m\u203900\u203a\n');
  is('age', [59e3, 60e3, 36e5, 49 * 36e5, -5].map((ms) => age(1e12 - ms, 1e12)), ['<1m', '1m', '1h', '2d', '<1m']);
  is('short', short('abcdefghij', 5), 'ab\u2026ij');
  const { files } = patch(['diff --git a/x b/y', 'similarity index 90%', 'rename from x', '--- a/x', '+++ b/y', '@@ -1,2 +1,2 @@ fn f', ' a', '--- b', '+++ c', '\\ No newline at end of file', 'diff --git a/z b/z', 'Binary files differ']);
  is('files', files.map((file) => [file.from, file.name, file.added, file.removed]), [['x', 'y', 1, 1], [null, 'z', 0, 0]]);
  is('lines', files[0].hunks[0].lines.map((line) => [line.sign, line.text, line.old ?? 0, line.now ?? 0]), [[' ', 'a', 1, 1], ['-', '-- b', 2, 0], ['+', '++ c', 0, 2], ['\\', 'No newline at end of file', 0, 0]]);
  const node = (id, ...after) => ({ id, after });
  is('layers', layers([node('c', 'a', 'b'), node('a'), node('b', 'a'), node('d', 'd', 'gone')]).map((column) => column.map((one) => one.id)), [['a'], ['b', 'd'], ['c']]);
  is('circle', layers([node('a', 'b'), node('b', 'a')]).flat().length, 2);
  const entry = { name: 'Fix', state: 'asks', kind: 'needs', at: 'cargo publish?', place: 'main', tags: ['api'] };
  is('filter', ['fix publish', '!fix', 'tag:api', 'tag:main', 'state:asks !docs', 'name:publish', ''].map((words) => matches(entry, words)), [true, false, true, false, true, false, true]);
  const words = (verb) => ['flow', verb, '--root=/r', '--', 'f'];
  is('gate', [{ answers: { yes: words('approve') } }, { answers: { yes: words('allow') } }, { answers: { text: words('improve') } }, { answers: { text: words('answer') } }, { cut: true, answers: { yes: words('approve') } }].map((one) => gate(one)).map((how) => [how.kind, how.reason ?? null, how.words?.[0] ?? null]), [['choice', true, 'Approve'], ['choice', false, 'Allow'], ['words', null, 'graph-based'], ['text', null, null], ['long', null, null]]);
  is('answer', ['swarm approve 17', 'swarm answer 3 TEXT', 'swarm attach w', 'other', null].map((text) => answer({ answer: text })?.kind ?? null), ['permission', 'question', 'window', null, null]);
  const board = new Board();
  const whole = (rev, ...names) => ({ schema: 'swarm.board/1', board: 'b', rev, workers: names.map((name) => ({ name })), items: [] });
  board.take(whole(2, 'a', 'b'));
  board.take({ schema: 'swarm.board.change/1', board: 'b', rev: 4, workers: [{ name: 'c' }], items: [], gone: [{ kind: 'worker', name: 'a' }] });
  is('change', board.list('worker').map((row) => row.name), ['b', 'c']);
  board.take(whole(1, 'z'));
  is('anew', [board.rev, board.list('worker').length], [1, 1]);
  return found;
})()"""


def pure(rig: Rig, browser: Chromium) -> list[str]:
    """The decisions of the page, without what shows them."""
    browser.until("document.querySelector('.empty')")
    return browser.value(PURE)


def accessible(rig: Rig, browser: Chromium) -> list[str]:
    """axe finds nothing in any view, light and dark, wide and narrow; nothing is wider than the window."""
    if not os.environ.get(AXE):
        raise cases.Missing("axe-core")
    script = Path(os.environ[AXE]).read_text()
    rig.start_tmux()
    spawn(rig, "asks", rig.binary, "ask", "Which colour?", "--option", "red", "--wait")
    spawn(rig, "works", "sh", "-c", "printf '\\033[31mred\\033[m on \\033[44mblue\\033[m'; exec sleep 600", flags=rig.tmux_flags)
    spawn(rig, "fails", "sh", "-c", "exit 3")
    spawn(rig, "changes", "sh", "-c", "echo new > new.txt; git add .; exec sleep 600", flags=("--worktree",))
    browser.until("document.querySelectorAll('.row').length === 4 && document.title.startsWith('(1)')")
    browser.value(script + "; 0")
    findings = []
    for scheme in ("light", "dark"):
        for width in (1280, 320):
            browser.show(scheme, width)
            for name, wanted, view in (("", ".row", None), ("asks", ".request button", None), ("works", ".term", None),
                                       ("fails", ".panel .line", "explain"), ("changes", ".file", "diff")):
                browser.value(f"location.hash = {('#/w%2F' + name if name else '#/')!r}")
                if view:
                    browser.until(f"document.querySelector('#tab-{view}')")
                    browser.value(f"document.querySelector('#tab-{view}').click()")
                browser.until(f"document.querySelector({wanted!r})")
                found = browser.value("axe.run().then((said) => said.violations.map((one) => `${one.id}: ${one.nodes[0].html}`))")
                wide = browser.value("document.documentElement.scrollWidth > innerWidth")
                place = f"{name or 'list'}, {scheme}, {width}"
                findings += [f"{place}: {one}" for one in found] + ([f"{place}: too wide"] if wide else [])
                if view:
                    browser.value("document.querySelector('#tab-screen').click()")
    return findings


def told(rig: Rig) -> str:
    return (rig.home / "web.said").read_text()


def once(rig: Rig, browser: Chromium) -> list[str]:
    """The tab survives a reload; a second tab is told that the address was used, and so is the terminal."""
    link = "document.querySelector('#link').textContent"
    browser.until("document.querySelector('.empty')")
    wait_until(lambda: "the page was opened by " in told(rig), 10, "it says who has opened the page")
    findings = [] if "chrom" in told(rig) else [f"it does not name the browser: {told(rig)!r}"]
    for _ in range(2):
        browser.anew(lambda: browser.call("Page.reload"))
        browser.until("document.querySelector('.empty')")
    findings += [] if browser.value(link) == "" else ["a reload is refused"]
    # From the history of the same tab: it is the code of this tab.
    browser.anew(lambda: browser.open(browser.address))
    browser.until("location.hash === '#/' && document.querySelector('.empty')")
    findings += ["the code of the same tab is an alarm"] if "used again" in told(rig) else []
    first = browser.session
    browser.another()
    browser.open(browser.address)
    browser.until(f"{link}.startsWith('This address was already used. If that was not you, end')")
    findings += [] if browser.value("location.href").endswith("/#/") else ["the used code stays in the address"]
    findings += ["a tab that is refused has a token"] if browser.value("sessionStorage.length") else []
    wait_until(lambda: "an address was used again, by " in told(rig), 10, "it warns of the second use")
    browser.anew(lambda: browser.open(browser.address.split("#")[0]))
    browser.until(f"{link}.startsWith('Open the whole address')")
    browser.session = first
    findings += [] if browser.value(link) == "" else ["the first tab has ended"]
    # The browser reports each refusal of the server.
    browser.problems[:] = [problem for problem in browser.problems if "410" not in problem]
    return findings


def below(rig: Rig, browser: Chromium) -> list[str]:
    """A worker with the token of the tab cannot act; the person can."""
    spawn(rig, "w", "sleep", "600")
    browser.until(row("w"))
    token = browser.value("sessionStorage.getItem('swarm-token')")
    board = browser.value(f"fetch('/v1/board', {{headers: {{authorization: 'Bearer {token}'}}}}).then((answer) => answer.json())")
    order = json.dumps({"verb": "kill", "name": "w", "generation": board["workers"][0]["generation"]})
    script = ("import sys, urllib.request as web\n"
              "head = {'content-type': 'application/json', 'authorization': 'Bearer ' + sys.argv[2]}\n"
              "try: web.urlopen(web.Request(sys.argv[1] + 'v1/act', sys.argv[3].encode(), head)); print('done')\n"
              "except web.HTTPError as error: print(error.code, error.read().decode())\n")
    (Path(rig.repo) / "act.py").write_text(script)
    spawn(rig, "thief", "sh", "-c", 'exec python3 act.py "$@" > said', "sh", browser.address.split("#")[0], token, order)
    file = Path(rig.repo) / "said"
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 20, "the worker has an answer")
    said = file.read_text()
    findings = [] if said.startswith("403") and "worker 'thief'" in said else [f"a worker acts: {said!r}"]
    browser.value(row("w") + ".click()")
    browser.until("document.querySelector('.acts .danger')")
    browser.value("document.querySelector('.acts .danger').click()")
    browser.until("document.querySelector('dialog').open")
    browser.value("document.querySelector('dialog .danger').click()")
    browser.until(row("w") + "?.querySelector('.state').textContent === 'stopped'")
    return findings


CASES = {"page once": page(once), "page below": page(below, "--allow", "act"), "page shows": page(shows), "page answers": page(answers, "--allow", "act,answer"), "page gates": page(gates, "--allow", "answer"), "page other": page(other, "--allow", "act"),
         "page pure": page(pure), "page accessible": page(accessible, "--allow", "act,answer")}


def main(argv=None) -> int:
    args = cases.parser(__doc__).parse_args(argv)
    cases.ends_on_term()
    return cases.run_all(CASES, args.only, allow_skips=args.allow_skips).close()


if __name__ == "__main__":
    sys.exit(main())
