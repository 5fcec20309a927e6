//! The lines that the two ends exchange. After a login shell has printed whatever it prints, the far end says hello in a
//! line of its own; every later line, in both directions, is one JSON object. Variants and keys are only added, so
//! unknown ones are ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the protocol.
pub const PROTOCOL: u32 = 2;
/// First version in which verbs say how far they are, and requests are repeated.
pub const PROTOCOL_MARKS: u32 = 2;
/// Oldest version that this program understands.
pub const PROTOCOL_MIN: u32 = 1;
/// Beginning of the line with which the far end says hello.
pub const MAGIC: &str = "swarm-stdio ";
/// Maximum length of a line in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of bytes of a stream in one line. A byte takes at most six characters in JSON.
pub const CHUNK_BYTES: usize = 32 << 10;
/// Maximum length of the text of a call in bytes, in however many lines it is sent.
pub const CALL_BYTES_MAX: usize = 64 << 20;
/// Maximum number of bytes of such a text in one line. Short, so that a slow line brings a line in time.
const PART_BYTES: usize = 64 << 10;
/// Time between two beats, which show that the other end is still there.
pub const BEAT: Duration = Duration::from_secs(15);
/// Time without any line after which the connection counts as cut.
pub const SILENCE_MAX: Duration = Duration::from_secs(45);

/// First line of the far end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol.
    pub protocol: u32,
    /// Oldest version that the far end understands.
    pub min: u32,
    /// Version of the program.
    pub version: String,
    /// Name of the machine.
    #[serde(default)]
    pub machine: String,
    /// Time there, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub wall_ms: u64,
    /// Number of CPUs that the far end may use.
    #[serde(default)]
    pub cpus: usize,
    /// Load average of the last minute.
    #[serde(default)]
    pub load: f64,
    /// Id of the boot there.
    #[serde(default)]
    pub boot: String,
}

impl Hello {
    /// Returns the hello of this program on this machine.
    pub fn of_this(version: &str) -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            protocol: PROTOCOL,
            min: PROTOCOL_MIN,
            version: version.to_owned(),
            machine: swarm_sys::clock::host(),
            wall_ms: swarm_sys::clock::wall_ms(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default(),
            boot: swarm_sys::procfs::boot_id(),
        }
    }

    /// Reports whether the two ends have a version of the protocol in common.
    pub fn is_understood(&self) -> bool {
        self.protocol >= PROTOCOL_MIN && self.min <= PROTOCOL
    }
}

/// Bytes of a stream: text if they are UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bytes {
    Text(String),
    Raw(Vec<u8>),
}

impl Bytes {
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Raw(bytes.to_owned()),
        }
    }

    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Raw(bytes) => bytes,
        }
    }
}

/// A verb that the far end executes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Words after the name of the program.
    pub words: Vec<String>,
    /// Directory, relative to the home there; the home by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// State directory, relative to the home there; the default one there by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Set if standard input follows. Otherwise it is empty.
    #[serde(default)]
    pub input: bool,
    /// Variables of the other end that are added to the environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Set if the verb says by marks how far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_on: Option<GoesOn>,
    /// Set if the far end keeps the answer, for whoever asks again. Such a verb has no standard input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Repeatable>,
}

/// A request that is executed at most once, however often it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeatable {
    /// Random hex digits.
    pub id: String,
    /// Numbers of bytes of both streams that are not told again.
    pub out: u64,
    pub err: u64,
    /// Id of the boot in which it was asked first; empty if that is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// Whether it was asked before. It may have been executed then, so that it is not executed if nothing is known of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

impl Repeatable {
    /// Reports whether it was asked first in another boot than this one, or of another machine.
    pub fn is_of_another_boot(&self, boot: &str) -> bool {
        !self.boot.is_empty() && !boot.is_empty() && self.boot != boot
    }
}

/// Where a verb goes on that was cut. Also the first line that such a verb reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoesOn {
    /// Last mark that arrived. `None`: start from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// Time since its beginning, in milliseconds.
    #[serde(default)]
    pub spent_ms: u64,
}

/// Line to the far end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Executes a verb. One is executed per connection.
    Verb(Call),
    /// Bytes for its standard input.
    Input(Bytes),
    /// Standard input has ended.
    InputEnd,
    /// Sends it this signal: INT or TERM.
    Signal(String),
    /// Asks for something about an attempt of a run. A connection on which that was asked executes no verb; calls may
    /// overlap, and each is answered under its number.
    Call {
        id: u64,
        call: Value,
        /// State directory, relative to the home there; the default one there by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<String>,
    },
    /// A part of the text of a call that is too long for a line. The call follows under the same number, and is null.
    Part {
        id: u64,
        text: String,
    },
    Beat,
}

/// Line of the far end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tell {
    /// Bytes of standard output.
    Out(Bytes),
    /// Bytes of standard error.
    Err(Bytes),
    /// The verb can go on from here: all output before this line is complete. Only its own program understands the value.
    Mark(Value),
    /// The verb has ended with this code. Last line.
    Exit(u8),
    /// The verb was not executed, for this reason. Last line.
    Refused(String),
    /// Text for standard error that is not part of the output.
    Note(String),
    /// The request cannot be noted, for this reason, and was not executed. It may be asked without an id.
    Unnoted(String),
    /// The request was begun, and its end is not known. Last line.
    Lost,
    /// The request was asked before, and nothing is known of it. It is not executed. Last line.
    Forgotten,
    /// Answer to a call.
    Answer {
        id: u64,
        answer: Value,
        /// Id of the state directory that answers. `None` if that is not known, or if an older program answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
    },
    Beat,
}

/// Returns the line of a frame, with its newline.
pub fn line(frame: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(frame).expect("frames are plain enums with text keys");
    line.push(b'\n');
    line
}

/// Returns the lines of a call: one, or those of its parts before it.
///
/// # Errors
/// Fails if the text of the call is longer than `CALL_BYTES_MAX`.
pub fn call_lines(id: u64, call: Value) -> Result<Vec<Vec<u8>>, TooLong> {
    let text = call.to_string();
    if text.len() <= PART_BYTES {
        return Ok(vec![line(&Ask::Call { id, call, state: None })]);
    }
    if text.len() > CALL_BYTES_MAX {
        return Err(TooLong);
    }
    let (mut lines, mut rest) = (Vec::new(), text.as_str());
    while !rest.is_empty() {
        let (part, more) = rest.split_at(rest.floor_char_boundary(PART_BYTES));
        lines.push(line(&Ask::Part { id, text: part.to_owned() }));
        rest = more;
    }
    lines.push(line(&Ask::Call { id, call: Value::Null, state: None }));
    Ok(lines)
}

/// Parts of calls that have not come to their end yet.
#[derive(Debug, Default)]
pub struct Parts {
    /// `None` for a call that is too long.
    texts: BTreeMap<u64, Option<String>>,
}

impl Parts {
    pub fn add(&mut self, id: u64, text: &str) {
        let others: usize = self.texts.values().flatten().map(String::len).sum();
        let whole = self.texts.entry(id).or_insert_with(|| Some(String::new()));
        match whole {
            Some(whole) if others + text.len() <= CALL_BYTES_MAX => whole.push_str(text),
            whole => *whole = None,
        }
    }

    /// Returns a call whose line has come, put together from its parts if there were any.
    ///
    /// # Errors
    /// Fails if the parts were too long.
    pub fn complete(&mut self, id: u64, call: Value) -> Result<Value, TooLong> {
        match self.texts.remove(&id) {
            Some(whole) if call.is_null() => Ok(serde_json::from_str(&whole.ok_or(TooLong)?).unwrap_or_default()),
            _ => Ok(call),
        }
    }
}

/// Returns the line of the hello.
pub fn hello_line(hello: &Hello) -> Vec<u8> {
    [MAGIC.as_bytes(), &line(hello)].concat()
}

/// Lines of a stream, put together from what is read of it.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// Number of bytes that contain no newline.
    looked: usize,
}

/// A line or a call is too long.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

impl Lines {
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line without its newline.
    ///
    /// # Errors
    /// Fails if the line is longer than `LINE_BYTES_MAX`.
    pub fn complete(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let Some(at) = self.bytes[self.looked..].iter().position(|byte| *byte == b'\n') else {
            self.looked = self.bytes.len();
            return if self.looked > LINE_BYTES_MAX { Err(TooLong) } else { Ok(None) };
        };
        let mut line: Vec<u8> = self.bytes.drain(..=self.looked + at).collect();
        self.looked = 0;
        line.pop();
        if line.len() > LINE_BYTES_MAX { Err(TooLong) } else { Ok(Some(line)) }
    }

    /// Returns what is left: an incomplete line.
    pub fn rest(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns the hello in a line. The login shell may have printed something before it.
pub fn hello_in(line: &[u8]) -> Option<Hello> {
    let at = line.windows(MAGIC.len()).position(|part| part == MAGIC.as_bytes())?;
    serde_json::from_slice(&line[at + MAGIC.len()..]).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_have_a_fixed_form() {
        let call = Call { words: vec!["ls".into()], dir: Some("p".into()), ..Call::default() };
        for (frame, text) in [
            (line(&Ask::Verb(call)), "{\"verb\":{\"words\":[\"ls\"],\"dir\":\"p\",\"input\":false}}\n"),
            (line(&Ask::Input(Bytes::of(b"\xff"))), "{\"input\":[255]}\n"),
            (line(&Ask::InputEnd), "\"input_end\"\n"),
            (line(&Ask::Signal("INT".into())), "{\"signal\":\"INT\"}\n"),
            (line(&Tell::Out(Bytes::of("ä\n".as_bytes()))), "{\"out\":\"ä\\n\"}\n"),
            (line(&Tell::Exit(7)), "{\"exit\":7}\n"),
            (line(&Tell::Mark(Value::from(3))), "{\"mark\":3}\n"),
            (line(&Tell::Beat), "\"beat\"\n"),
        ] {
            assert_eq!(String::from_utf8(frame).expect("text"), text);
        }
    }

    #[test]
    fn a_hello_is_found_behind_what_a_shell_printed() {
        let hello = Hello::of_this("0.1.0");
        let line = hello_line(&hello);
        let line = line.strip_suffix(b"\n").expect("a line");
        assert_eq!(hello_in(line), Some(hello.clone()));
        assert_eq!(hello_in(&[b"Welcome! ", line].concat()), Some(hello.clone()));
        assert_eq!((hello_in(b"swarm-stdio {}"), hello_in(b"")), (None, None));
        assert!(hello.is_understood());
        assert!(!Hello { protocol: 9, min: PROTOCOL + 1, ..hello.clone() }.is_understood());
        assert!(!Hello { protocol: PROTOCOL_MIN - 1, min: 0, ..hello }.is_understood());
    }

    #[test]
    fn a_line_that_never_ends_is_refused() {
        let mut lines = Lines::default();
        lines.add(&vec![b'x'; LINE_BYTES_MAX]);
        assert_eq!(lines.complete(), Ok(None));
        lines.add(b"xx");
        assert_eq!(lines.complete(), Err(TooLong));
    }

    #[test]
    fn a_long_call_arrives_in_parts() {
        let asked = |lines: Vec<Vec<u8>>| {
            let mut parts = Parts::default();
            lines.into_iter().find_map(|line| {
                assert!(line.len() <= LINE_BYTES_MAX);
                match serde_json::from_slice(&line).expect("a line") {
                    Ask::Part { id, text } => {
                        parts.add(id, &text);
                        None
                    }
                    Ask::Call { id, call, .. } => Some(parts.complete(id, call)),
                    other => panic!("not sent: {other:?}"),
                }
            })
        };
        for text in ["short".to_owned(), "\u{1}ä\"".repeat(200_000), "x".repeat(PART_BYTES)] {
            let call = serde_json::json!({"a": text});
            assert_eq!(asked(call_lines(7, call.clone()).expect("fits")), Some(Ok(call)));
        }
        assert_eq!(call_lines(7, Value::String("x".repeat(CALL_BYTES_MAX))), Err(TooLong));
        let mut parts = Parts::default();
        let part = "x".repeat(CALL_BYTES_MAX / 2);
        for id in [1, 1, 2, 1] {
            parts.add(id, &part);
        }
        assert_eq!((parts.complete(2, Value::Null), parts.complete(1, Value::Null)), (Err(TooLong), Err(TooLong)));
        assert_eq!(parts.complete(3, Value::Bool(true)), Ok(Value::Bool(true)));
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_they_are_cut(
            texts in proptest::collection::vec("[^\n]{0,20}", 0..8),
            sizes in proptest::collection::vec(1_usize..9, 1..40),
        ) {
            let whole: Vec<u8> = texts.iter().flat_map(|text| format!("{text}\n").into_bytes()).collect();
            let (mut lines, mut found, mut at) = (Lines::default(), Vec::new(), 0);
            for size in sizes.iter().cycle() {
                if at == whole.len() {
                    break;
                }
                let end = (at + size).min(whole.len());
                lines.add(&whole[at..end]);
                at = end;
                while let Ok(Some(line)) = lines.complete() {
                    found.push(String::from_utf8(line).expect("text"));
                }
            }
            prop_assert_eq!(found, texts);
            prop_assert!(lines.rest().is_empty());
        }

        #[test]
        fn bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let sent = line(&Tell::Out(Bytes::of(&bytes)));
            let Ok(Tell::Out(came)) = serde_json::from_slice(&sent) else { panic!("not read") };
            prop_assert_eq!(came.as_slice(), bytes.as_slice());
        }
    }
}
