"""A stand-in for the model APIs that agents call: Anthropic's messages (claude, opencode), OpenAI's responses (codex) and
chat completions (qwen), and Google's contents (gemini).

The "model" follows directives. The last prompt of a conversation that contains directives counts. Directives, in order:

    [[as NAME]]                    name of the conversation in the records
    [[usage IN OUT]]               the tokens of each answer
    [[write PATH|TEXT]]  [[read PATH]]  [[bash COMMAND]]     one tool call each
    [[escalate COMMAND]]           codex's shell, with the wish to execute the command outside of its sandbox
    [[ask QUESTION]]               claude's tool that asks the user
    [[tool SERVER NAME JSON]]      a tool of an MCP server, for claude and codex
    [[gate NAME]]                  the next answer is held until the case opens NAME
    [[error STATUS TIMES AFTER]]   the next step fails TIMES times with STATUS, and with `retry-after: AFTER` if given
    [[limit SECONDS]]              the next step fails once with the account's limit, which ends after SECONDS
    [[say TEXT]]                   the final message

The current step follows from the tool results in the conversation, so a conversation that resumes elsewhere just
continues.
"""

import json
import os
import re
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DIRECTIVE = re.compile(r"\[\[(as|usage|write|read|bash|escalate|ask|tool|gate|error|limit|say)\b ?(.*?)\]\]", re.S)
DIRECTORY = re.compile(r"(?:[Ww]orking directory|<cwd>)(?: is)?\s*:?\s*`?(/[^\s<`\"\\]+)")
ERRORS = {401: "authentication_error", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
GATE_LIMIT = 120


@dataclass
class Conversation:
    """What one request shows of its conversation, in either protocol."""

    session: str
    model: str
    directory: str
    # (role, text, number of tool results), in order.
    turns: list[tuple[str, str, int]]
    # Names of the offered tools. A request without tools is no step of the task: it asks for a title, for example.
    tools: frozenset[str] = frozenset({"any"})

    def prompts(self) -> list[str]:
        return [text for role, text, _ in self.turns if role == "user" and DIRECTIVE.search(text)]

    def step(self) -> int:
        """Number of tool results since the last prompt."""
        prompts = [at for at, (role, text, _) in enumerate(self.turns) if role == "user" and DIRECTIVE.search(text)]
        return sum(results for _, _, results in self.turns[max(prompts, default=0):])


@dataclass
class Answer:
    """An answer of the model: a tool call, a text, or an error."""

    kind: str
    name: str = ""
    argument: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    usage: tuple[int, int] = (100, 20)


@dataclass(frozen=True)
class Record:
    """An answer that was given."""

    at: float
    who: str
    session: str
    prompts: int
    answer: Answer


def parts(role: str, content) -> list[tuple[str, str, int]]:
    """Returns the turns in a message's content: one message may hold two prompts, if the first was never answered."""
    content = [{"text": content}] if isinstance(content, str) else content or []
    return [(role, str(part.get("text") or ""), int(part.get("type") == "tool_result")) for part in content]


def of_messages(body: dict, headers) -> Conversation:
    """Parses a request to /v1/messages."""
    turns = [turn for message in body.get("messages", []) for turn in parts(message["role"], message["content"])]
    session = headers.get("x-claude-code-session-id", "")
    tools = frozenset(tool.get("name", "") for tool in body.get("tools") or [])
    return Conversation(session, body.get("model", ""), directory_in(body), turns, tools)


def of_contents(body: dict, path: str) -> Conversation:
    """Parses a request to /v1beta/models/MODEL:streamGenerateContent."""
    turns = []
    for content in body.get("contents", []):
        for part in content.get("parts", []):
            turns.append((content.get("role", "user"), part.get("text") or "", int("functionResponse" in part)))
    tools = frozenset(one["name"] for tool in body.get("tools") or [] for one in tool.get("functionDeclarations", []))
    return Conversation("", path.rsplit("/", 1)[-1].split(":")[0], "", turns, tools)


def of_responses(body: dict, headers) -> Conversation:
    """Parses a request to /v1/responses."""
    turns = []
    for item in body.get("input", []):
        if item.get("type", "").endswith("_call_output"):
            turns.append(("tool", "", 1))
        elif item.get("type", "message") == "message":
            turns += parts(item.get("role", "user"), item.get("content"))
    return Conversation(headers.get("session-id", ""), body.get("model", ""), directory_in(body), turns)


def of_chat(body: dict) -> Conversation:
    """Parses a request to /v1/chat/completions."""
    turns = []
    for message in body.get("messages", []):
        if message["role"] == "tool":
            turns.append(("tool", "", 1))
        else:
            turns += parts(message["role"], message.get("content"))
    tools = frozenset(tool["function"]["name"] for tool in body.get("tools") or [])
    return Conversation("", body.get("model", ""), directory_in(body), turns, tools)


def directory_in(body: dict) -> str:
    return (DIRECTORY.findall(json.dumps(body)) or [""])[-1]


class StandIn:
    """The server, its gates, and the record of its answers. Use as a context manager."""

    def __init__(self):
        self.records: list[Record] = []
        self.gates: dict[str, threading.Event] = {}
        self.held: dict[str, int] = {}
        self.failed: dict[tuple, int] = {}
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"stand_in": self}))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *exc) -> None:
        with self.lock:
            for gate in self.gates.values():
                gate.set()
        self.server.shutdown()
        self.server.server_close()

    # Interface for the cases.

    def open(self, name: str) -> None:
        with self.lock:
            self.gates.setdefault(name, threading.Event()).set()

    def waiting(self, name: str) -> int:
        """Number of requests that are held at this gate now."""
        with self.lock:
            return self.held.get(name, 0)

    def answers(self, who: str, kind: str = "") -> list[Record]:
        """The answers in conversations of this name."""
        with self.lock:
            return [record for record in self.records if record.who == who and kind in ("", record.answer.kind)]

    def usage(self, who: str) -> tuple[int, int]:
        """Total tokens of all its answers that were not errors."""
        told = [record.answer.usage for record in self.answers(who) if record.answer.kind != "error"]
        return sum(one for one, _ in told), sum(two for _, two in told)

    def sessions(self, who: str) -> set[str]:
        return {record.session for record in self.answers(who)}

    # Answering.

    def answer(self, asked: Conversation, is_gone) -> Answer:
        """Returns the next answer; records it unless the client has disconnected meanwhile."""
        prompts = asked.prompts()
        if not asked.tools:
            return Answer("text", argument="a title", usage=(1, 1))
        if not prompts:
            return self.recorded(asked, "", Answer("text", argument="done"))
        directives = DIRECTIVE.findall(prompts[-1])
        said = {kind: argument for kind, argument in directives if kind in ("as", "usage", "say")}
        who = said.get("as", "")
        chosen = self.chosen(asked, directives, who) or Answer("text", argument=said.get("say", "done"))
        if "usage" in said:
            chosen.usage = tuple(int(word) for word in said["usage"].split())
        return chosen if is_gone() else self.recorded(asked, who, chosen)

    def recorded(self, asked: Conversation, who: str, answer: Answer) -> Answer:
        with self.lock:
            self.records.append(Record(time.time(), who, asked.session, len(asked.prompts()), answer))
        return answer

    def chosen(self, asked: Conversation, directives: list, who: str) -> Answer | None:
        """Returns the next call, or the answer that a directive puts before it; `None` if all is done."""
        at, before, step = 0, [], asked.step()
        for kind, argument in directives:
            if kind in ("gate", "error", "limit"):
                before.append((kind, argument, (who, kind, argument)))
            elif kind in ("write", "read", "bash", "escalate", "ask", "tool"):
                if at == step:
                    return self.obstacle(before) or call(kind, argument, asked.directory)
                at, before = at + 1, []
        return self.obstacle(before)

    def obstacle(self, before: list) -> Answer | None:
        for kind, argument, key in before:
            if kind == "gate":
                self.hold(argument)
                continue
            with self.lock:
                times = self.failed[key] = self.failed.get(key, 0) + 1
            if kind == "limit" and times == 1:
                return Answer("error", status=429, headers=limit(float(argument)))
            if kind == "error":
                status, most, *after = argument.split()
                if times <= int(most):
                    return Answer("error", status=int(status), headers={"retry-after": after[0]} if after else {})
        return None

    def hold(self, name: str) -> None:
        with self.lock:
            gate = self.gates.setdefault(name, threading.Event())
            self.held[name] = self.held.get(name, 0) + 1
        gate.wait(GATE_LIMIT)
        with self.lock:
            self.held[name] -= 1


def limit(seconds: float) -> dict[str, str]:
    """Headers of an account limit that ends after `seconds`."""
    kind = "anthropic-ratelimit-unified"
    until = str(int(time.time() + seconds))
    return {f"{kind}-status": "rejected", f"{kind}-reset": until, f"{kind}-representative-claim": "five_hour",
            f"{kind}-5h-status": "rejected", f"{kind}-5h-reset": until, f"{kind}-5h-utilization": "1.0",
            "retry-after": "7200"}


def call(kind: str, argument: str, directory: str) -> Answer:
    path, _, text = argument.partition("|")
    if kind in ("bash", "escalate", "ask", "tool"):
        return Answer("call", name=kind, argument=argument)
    return Answer("call", name=kind, argument=json.dumps([os.path.join(directory, path), text.replace("\\n", "\n")]))


def claude_call(answer: Answer) -> dict:
    """The call as a content block of /v1/messages."""
    if answer.name == "bash":
        name, words = "Bash", {"command": answer.argument, "description": "a step"}
    elif answer.name == "ask":
        options = [{"label": label, "description": label} for label in ("yes", "no")]
        name = "AskUserQuestion"
        words = {"questions": [{"question": answer.argument, "header": "Choice", "options": options, "multiSelect": False}]}
    elif answer.name == "tool":
        server, tool, words = answer.argument.split(" ", 2)
        name, words = f"mcp__{server}__{tool}", json.loads(words)
    else:
        path, text = json.loads(answer.argument)
        name, words = answer.name.capitalize(), {"file_path": path}
        if answer.name == "write":
            words["content"] = text
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:16]}", "name": name, "input": words}


def opencode_call(answer: Answer) -> dict:
    """The call as a content block of /v1/messages, with the tools of opencode."""
    if answer.name == "bash":
        words = {"command": answer.argument, "description": "a step"}
    else:
        path, text = json.loads(answer.argument)
        words = {"filePath": path} | ({"content": text} if answer.name == "write" else {})
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:16]}", "name": answer.name, "input": words}


def gemini_call(answer: Answer) -> dict:
    """The call as a part of a content."""
    if answer.name == "bash":
        name, words = "run_shell_command", {"command": answer.argument}
    else:
        path, text = json.loads(answer.argument)
        name, words = f"{answer.name}_file", {"file_path": path}
        if answer.name == "write":
            words["content"] = text
    return {"functionCall": {"name": name, "args": words}}


def qwen_call(answer: Answer) -> dict:
    """The call as a part of a message, with the tools of qwen, which are those of gemini."""
    call = gemini_call(answer)["functionCall"]
    words = call["args"] | ({"is_background": False} if call["name"] == "run_shell_command" else {})
    return {"index": 0, "id": f"call_{uuid.uuid4().hex[:12]}", "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(words)}}


def codex_call(answer: Answer) -> dict:
    """The call as an item of /v1/responses, where the shell writes files."""
    command, more = answer.argument, {}
    called = {"type": "function_call", "id": f"fc_{uuid.uuid4().hex[:12]}", "call_id": f"call_{uuid.uuid4().hex[:12]}",
              "status": "completed"}
    if answer.name == "tool":
        server, tool, words = answer.argument.split(" ", 2)
        return called | {"namespace": f"mcp__{server}", "name": tool, "arguments": words}
    if answer.name == "escalate":
        more = {"sandbox_permissions": "require_escalated", "justification": "May I?"}
    elif answer.name != "bash":
        path, text = json.loads(answer.argument)
        command = f"cat '{path}'" if answer.name == "read" else f"cat > '{path}' <<'__END__'\n{text.rstrip()}\n__END__"
    return called | {"name": "exec_command", "arguments": json.dumps({"cmd": command} | more)}


class Handler(BaseHTTPRequestHandler):
    """Handles one request; `stand_in` belongs to the server."""

    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def log_message(self, *words) -> None:
        """Logs nothing: the records are what counts."""

    def do_HEAD(self) -> None:
        self.json(200, {})

    def do_GET(self) -> None:
        self.json(404, {"type": "error", "error": {"type": "not_found_error", "message": f"no such path: {self.path}"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        path = self.path.split("?")[0]
        try:
            if path.endswith("/messages"):
                asked = of_messages(body, self.headers)
                self.call = opencode_call if "bash" in asked.tools else claude_call
                self.give(self.stand_in.answer(asked, self.is_gone), body, self.as_messages)
            elif "enerateContent" in path:
                asked = of_contents(body, path)
                protocol = self.as_contents if "stream" in path else self.as_content
                self.give(self.stand_in.answer(asked, self.is_gone), body, protocol)
            elif path.endswith("/chat/completions"):
                protocol = self.as_chat if body.get("stream") else self.as_whole_chat
                self.give(self.stand_in.answer(of_chat(body), self.is_gone), body, protocol)
            elif path.endswith("/responses"):
                self.give(self.stand_in.answer(of_responses(body, self.headers), self.is_gone), body, self.as_responses)
            else:
                self.do_GET()
        except OSError:
            # The client has disconnected.
            self.close_connection = True

    def is_gone(self) -> bool:
        """Reports whether the client has closed the connection."""
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def give(self, answer: Answer, body: dict, protocol) -> None:
        if answer.kind != "error":
            return protocol(answer, body.get("model", ""))
        kind = ERRORS.get(answer.status, "api_error")
        error = {"type": kind, "code": kind, "message": f"refused with {answer.status}"}
        self.json(answer.status, {"type": "error", "error": error}, answer.headers)

    def json(self, status: int, value: dict, headers: dict | None = None) -> None:
        text = b"" if self.command == "HEAD" else json.dumps(value).encode()
        self.send_response(status)
        told = {"content-type": "application/json", "content-length": str(len(text)), **(headers or {})}
        for key, one in told.items():
            self.send_header(key, one)
        self.end_headers()
        self.wfile.write(text)

    def stream(self, events: list[dict]) -> None:
        """Sends server-sent events, each named by its type."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        # Google's events have no type.
        named = (("event: " + one["type"] + "\n" if "type" in one else "", json.dumps(one)) for one in events)
        self.wfile.write("".join(f"{name}data: {text}\n\n" for name, text in named).encode())

    def as_messages(self, answer: Answer, model: str) -> None:
        tokens_in, tokens_out = answer.usage
        usage = {"input_tokens": tokens_in, "output_tokens": 1,
                 "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        whole = {"id": f"msg_{uuid.uuid4().hex[:16]}", "type": "message", "role": "assistant", "model": model,
                 "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        if answer.kind == "call":
            block, stop = self.call(answer), "tool_use"
            begun = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            stop, begun = "end_turn", {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": answer.argument}
        self.stream([
            {"type": "message_start", "message": whole},
            {"type": "content_block_start", "index": 0, "content_block": begun},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None},
             "usage": {"output_tokens": tokens_out}},
            {"type": "message_stop"},
        ])

    def content(self, answer: Answer) -> dict:
        tokens_in, tokens_out = answer.usage
        part = gemini_call(answer) if answer.kind == "call" else {"text": answer.argument}
        usage = {"promptTokenCount": tokens_in, "candidatesTokenCount": tokens_out,
                 "totalTokenCount": tokens_in + tokens_out}
        return {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
                "usageMetadata": usage, "modelVersion": "stand-in", "responseId": uuid.uuid4().hex}

    def as_content(self, answer: Answer, model: str) -> None:
        self.json(200, self.content(answer))

    def as_contents(self, answer: Answer, model: str) -> None:
        self.stream([self.content(answer)])

    def chat(self, answer: Answer, model: str) -> dict:
        """A whole chat completion."""
        tokens_in, tokens_out = answer.usage
        is_call = answer.kind == "call"
        said = {"content": None, "tool_calls": [qwen_call(answer)]} if is_call else {"content": answer.argument}
        choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": "tool_calls" if is_call else "stop"}
        usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}
        return {"id": f"chatcmpl-{uuid.uuid4().hex[:12]}", "object": "chat.completion", "created": int(time.time()),
                "model": model, "choices": [choice], "usage": usage}

    def as_whole_chat(self, answer: Answer, model: str) -> None:
        self.json(200, self.chat(answer, model))

    def as_chat(self, answer: Answer, model: str) -> None:
        whole = {**self.chat(answer, model), "object": "chat.completion.chunk"}
        choice, usage = whole.pop("choices")[0], whole.pop("usage")
        first = {"index": 0, "delta": choice["message"], "finish_reason": None}
        last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        self.stream([{**whole, "choices": [first]}, {**whole, "choices": [last]}, {**whole, "choices": [], "usage": usage}])

    def as_responses(self, answer: Answer, model: str) -> None:
        tokens_in, tokens_out = answer.usage
        text = {"type": "output_text", "text": answer.argument, "annotations": []}
        said = {"type": "message", "id": f"msg_{uuid.uuid4().hex[:12]}", "role": "assistant", "status": "completed",
                "content": [text]}
        item = codex_call(answer) if answer.kind == "call" else said
        usage = {"input_tokens": tokens_in, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": tokens_out,
                 "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens_in + tokens_out}
        whole = {"id": f"resp_{uuid.uuid4().hex[:16]}", "object": "response", "created_at": int(time.time()),
                 "status": "in_progress", "model": model, "output": []}
        done = {**whole, "status": "completed", "output": [item], "usage": usage}
        self.stream([
            {"type": "response.created", "response": whole},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": done},
        ])
