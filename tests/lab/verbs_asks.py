"""Scenarios of verbs about requests to people: `approve`, `deny`, `answer` and `rules`."""

from .asks_world import answer_of, listed, put, rules
from .oracle import Expect
from .rig import Result, Rig
from .verbs import Scenario, keep

ANSWERED = {"approve": ("allow", None, []), "deny": ("deny", "use nextest", []), "answer": ("answer", None, ["b"]),
            "always": ("allow", None, [])}
WORDS = {"approve": ["approve", "1"], "deny": ["deny", "1", "--reason", "use nextest"], "answer": ["answer", "1", "2"],
         "always": ["approve", "1", "--always", "--everywhere"]}


class Answer(Scenario):
    """The answer to request 1, of two."""

    def __init__(self, mode: str):
        self.mode = mode
        self.name = f"asks-{mode}"

    def cwd(self, rig: Rig) -> str:
        return str(rig.work)

    def prepare(self, rig: Rig) -> Expect:
        expect = keep(rig)
        for number in (1, 2):
            put(rig, number, "question" if self.mode == "answer" else "permission")
        return expect

    def words(self, rig: Rig) -> list[str]:
        return WORDS[self.mode]

    def expect(self, rig: Rig, made: Expect, whole: bool) -> Expect:
        return made

    def findings(self, rig: Rig, made: Expect, whole: bool) -> list[str]:
        shown = listed(rig)
        given, other = answer_of(shown.get("1")), shown.get("2", {}).get("state")
        found = [] if given == ANSWERED[self.mode] or given is None and not whole else [f"lost: the answer is {given}"]
        found += [] if other == "open" else [f"altered: the other request is {other}"]
        made_rules = [(effect, pattern) for _, effect, pattern in rules(rig)]
        # The rule comes before the answer.
        due = self.mode == "always" and given is not None
        if made_rules != [("allow", "make")] and (due or made_rules):
            found.append(f"{'lost' if due else 'altered'}: the rules are {made_rules}")
        return found

    def tolerated(self, point: dict | None, finding: str) -> bool:
        # Whoever was killed leaves its own file, which no reader looks at.
        return finding.startswith("litter: rules.jsonl.tmp.")

    def may_refuse(self, rig: Rig, made: Expect, result: Result) -> bool:
        return "was already" in result.err and answer_of(listed(rig)["1"]) == ANSWERED[self.mode]


class Rules(Scenario):
    """A rule is added, or removed."""

    def __init__(self, mode: str):
        self.mode = mode
        self.name = f"rules-{mode}"

    def cwd(self, rig: Rig) -> str:
        return str(rig.work)

    def prepare(self, rig: Rig) -> Expect:
        expect = keep(rig)
        for effect, pattern in (("--deny", "git push"), ("--allow", "make")):
            rig.must("rules", "add", effect, pattern, "--everywhere")
        return expect

    def words(self, rig: Rig) -> list[str]:
        return ["rules", "rm", "2"] if self.mode == "rm" else ["rules", "add", "--ask", "curl", "--everywhere"]

    def expect(self, rig: Rig, made: Expect, whole: bool) -> Expect:
        return made

    def findings(self, rig: Rig, made: Expect, whole: bool) -> list[str]:
        before = [(1, "deny", "git push"), (2, "allow", "make")]
        after = before[:1] if self.mode == "rm" else [*before, (3, "ask", "curl")]
        now = rules(rig)
        return [] if now == after or now == before and not whole else [f"altered: the rules are {now}"]

    def tolerated(self, point: dict | None, finding: str) -> bool:
        # Whoever was killed leaves its own file, which no reader looks at.
        return finding.startswith("litter: rules.jsonl.tmp.")

    def may_refuse(self, rig: Rig, made: Expect, result: Result) -> bool:
        return self.mode == "rm" and "not found" in result.err and not self.findings(rig, made, True)


SCENARIOS = (*map(Answer, ANSWERED), Rules("add"), Rules("rm"))
