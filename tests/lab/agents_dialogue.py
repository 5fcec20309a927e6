"""Scenes of the agents that are talked to in a dialogue."""


def corrected(site) -> list[str]:
    """Work that the verification rejects is fixed in the same conversation, or else in a new one with the evidence."""
    site.spec("fix", "[[bash test -e fix.txt && echo good > fix.txt || echo bad > fix.txt]] [[say wrote it]]")
    told = site.finish(site.begin("--verify", "grep -q good fix.txt"))
    told.row("fix", stage="done", attempt=2, failures=1, summary="wrote it")
    told.landed(fix="good")
    told.merges(1)
    one, two = site.conversation("fix", 1), site.conversation("fix", 2)
    if site.agent != "gemini-acp":
        # gemini may not find its own conversation.
        told.same("conversations on record", two, one)
        prompts = [record.prompts for record in site.stand_in.answers("fix")]
        told.same("prompts in the conversation", prompts, [1, 1, 2, 2])
    told.tools("fix", "fix.txt", "fix.txt")
    told.spent("fix")
    return told.findings


def refused(site) -> list[str]:
    """A refused key fails the workstream."""
    site.spec("key", "[[error 401 1000]] [[bash true]]", "retries: 0\n")
    told = site.finish(site.begin(), code=1)
    told.row("key", stage="failed", attempt=1, failures=1)
    return told.findings


SCENES = {"corrected": corrected, "refused": refused}
