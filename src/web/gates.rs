//! Requests of flows to people, as the page shows and answers them. The words of the verb come from the board, never from the page.

use serde::Deserialize;
use serde_json::Value;
use swarm_model::json::Members as _;

use crate::verbs::Line;

/// Request of a flow as the page has shown it. One that has changed since is another one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Asked {
    /// Key of the flow on the board.
    pub flow: String,
    /// Number of a permission request.
    pub request: Option<u64>,
    pub node: String,
    pub role: String,
    pub reason: String,
    pub text: String,
}

/// Answer to a request of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    Yes,
    /// With a reason, which only the requests of nodes take.
    No(Option<String>),
    Text(String),
}

impl Asked {
    fn is(&self, open: &Value) -> bool {
        let is_text = |name: &str, shown: &str| open.text(name) == Some(shown);
        open.whole("request") == self.request
            && is_text("node", &self.node)
            && is_text("role", &self.role)
            && is_text("reason", &self.reason)
            && is_text("text", &self.text)
    }
}

/// Returns the words of the verb that answers a request. `flow` is the present row of its flow.
///
/// # Errors
/// Returns a sentence if the request is over or has changed, if it is not shown completely, or if this is no answer to it.
pub fn line(flow: &Value, asked: &Asked, reply: &Reply) -> Result<(Line, Option<String>), String> {
    let present = flow.list("requests").iter().find(|open| asked.is(open));
    let open = present.ok_or("the flow does not ask what was shown any more; nothing was done")?;
    if open.get("cut").and_then(Value::as_bool) == Some(true) {
        let help = open.text("command").unwrap_or("swarm flow requests");
        return Err(format!(
            "the request is too long for this page: read it with 'swarm flow requests', then run '{help}'"
        ));
    }
    let no_answer = || "this is no answer to what the flow asks".to_owned();
    let (kind, more, input) = match reply {
        Reply::Yes => ("yes", None, None),
        Reply::No(reason) => ("no", reason.as_ref().map(|reason| format!("--message={reason}")), None),
        Reply::Text(text) if text.trim().is_empty() => return Err("the answer is empty".to_owned()),
        Reply::Text(text) => ("text", None, Some(text)),
    };
    let words = open.get("answers").map(|answers| answers.list(kind)).unwrap_or_default();
    let mut words: Vec<String> = words.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    // `flow VERB --root=…`
    let ["flow", verb, ..] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] else { return Err(no_answer()) };
    let takes_reason = verb == "decline";
    // As an argument, others could see the text in the list of processes. The choice of a phase is a word.
    let (word, input) = match (verb, input) {
        ("answer", Some(text)) => (Some("-".to_owned()), Some(text.clone())),
        (_, Some(text)) => (Some(text.clone()), None),
        (_, None) => (None, None),
    };
    if more.is_some() && !takes_reason {
        return Err("a reason is only for a handoff or changed work".to_owned());
    }
    words.splice(2..2, ["--json".to_owned()].into_iter().chain(more));
    words.extend(word);
    Ok((Line(words), input))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::sample::command;

    fn flow() -> Value {
        let words =
            |verb: &'static str, rest: &[&'static str]| [&["flow", verb, "--root=/r", "--", "p/1"], rest].concat();
        let request = |number: Option<u64>, node: &str, reason: &str, answers: Value| {
            json!({"request": number, "node": node, "role": "dev", "reason": reason, "text": "what", "command": "swarm flow x",
                   "cut": reason == "long", "answers": answers})
        };
        let gate = json!({"yes": words("approve", &["build"]), "no": words("decline", &["build"]), "text": null});
        let answer = ["flow", "answer", "--root=/r", "--node=ask", "--", "p/1"];
        json!({"requests": [
            request(None, "build", "handoff-approval", gate.clone()),
            request(Some(3), "build", "consent",
                    json!({"yes": words("allow", &["3"]), "no": words("deny", &["3"]), "text": null})),
            request(None, "ask", "prompt-human", json!({"yes": null, "no": null, "text": answer})),
            request(None, "flow", "awaiting_improvement_choice",
                    json!({"yes": null, "no": null, "text": words("improve", &[])})),
            request(None, "build", "long", gate),
        ]})
    }

    fn asked(at: usize) -> Asked {
        let mut value = flow()["requests"][at].clone();
        value["flow"] = "/r/p/1".into();
        serde_json::from_value(value).expect("a request")
    }

    #[test]
    fn each_answer_is_the_verb_that_the_board_names() {
        let no = |reason: Option<&str>| Reply::No(reason.map(str::to_owned));
        let text = |text: &str| Reply::Text(text.to_owned());
        for (at, reply, expected, input) in [
            (0, Reply::Yes, "flow approve --json --root=/r -- p/1 build", None),
            (0, no(None), "flow decline --json --root=/r -- p/1 build", None),
            (0, no(Some("-x y")), "flow decline --json --message=-x y --root=/r -- p/1 build", None),
            (1, Reply::Yes, "flow allow --json --root=/r -- p/1 3", None),
            (1, no(None), "flow deny --json --root=/r -- p/1 3", None),
            (2, text("--x"), "flow answer --json --root=/r --node=ask -- p/1 -", Some("--x")),
            (3, text("none"), "flow improve --json --root=/r -- p/1 none", None),
        ] {
            let (line, given) = line(&flow(), &asked(at), &reply).expect("an answer");
            command(&line.0.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!((line.0.join(" ").as_str(), given.as_deref()), (expected, input));
        }
    }

    #[test]
    fn only_what_was_shown_is_answered() {
        let refused = |asked: &Asked, reply: &Reply| line(&flow(), asked, reply).expect_err("refused");
        let changed = Asked { text: "other".to_owned(), ..asked(0) };
        assert!(refused(&changed, &Reply::Yes).contains("does not ask what was shown any more"));
        let again = Asked { request: Some(4), ..asked(1) };
        assert!(refused(&again, &Reply::Yes).contains("does not ask what was shown any more"));
        assert!(refused(&asked(4), &Reply::Yes).contains("too long for this page"));
        assert_eq!(refused(&asked(2), &Reply::Yes), "this is no answer to what the flow asks");
        assert_eq!(refused(&asked(0), &Reply::Text("yes".into())), "this is no answer to what the flow asks");
        assert_eq!(refused(&asked(2), &Reply::Text(" ".into())), "the answer is empty");
        assert!(refused(&asked(1), &Reply::No(Some("why".into()))).contains("a reason is only for"));
    }
}
