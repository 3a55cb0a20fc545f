//! Records of a service: its settings, then every event with its time and the actions that followed, one JSON object a line.
//!
//! [`Recorder`] writes a record beside a running [`Agent`]; [`replay`] runs the events of a record through a new one and compares
//! its actions. Events can be read back; actions are compared as text.

use std::fmt;
use std::io::{self, BufRead, Write};

use policy::Span;
use policy::tokens::{Rule, Settings, Share};
use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::agent::Agent;
use crate::event::Event;
use crate::residency::MemorySettings;

/// Version of the format, in the first line of a record.
pub const FORMAT: u32 = 1;
/// Largest length of a line, in bytes; a longer one is not of a record.
const LINE_MAX: u64 = 4 << 20;

/// First line of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    weir_agent_record: u32,
    commit: String,
    tokens: TokenNumbers,
    #[serde(default)]
    memory: MemorySettings,
}

/// Settings of the token scheduler as numbers: spans in nanoseconds, shares in millionths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TokenNumbers {
    sm_limit: u32,
    rule: String,
    spans: [u64; 13],
    hand_over_share_max: u32,
    idle_share_max: u32,
}

/// An event and what followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry<E> {
    at: u64,
    event: E,
    actions: Vec<String>,
}

const RULES: [(&str, Rule); 6] = [
    ("weir", Rule::Weir),
    ("paper", Rule::Paper),
    ("reactive-bucket", Rule::ReactiveBucket),
    ("time-only", Rule::TimeOnly),
    ("exclusive", Rule::Exclusive),
    ("racing", Rule::Racing),
];

impl From<&Settings> for TokenNumbers {
    fn from(settings: &Settings) -> Self {
        let rule = RULES.iter().find(|(_, rule)| *rule == settings.rule);
        Self {
            sm_limit: settings.sm_limit,
            rule: rule.map_or("", |(name, _)| name).to_owned(),
            spans: [
                settings.window,
                settings.horizon,
                settings.in_flight,
                settings.in_flight_alone,
                settings.cycle,
                settings.slice_min,
                settings.slice_max,
                settings.overtaking_max,
                settings.hand_over,
                settings.idle_max,
                settings.answer_max,
                settings.start_max,
                settings.paper_token,
            ]
            .map(|span| span.0),
            hand_over_share_max: settings.hand_over_share_max.parts_per_million(),
            idle_share_max: settings.idle_share_max.parts_per_million(),
        }
    }
}

impl TokenNumbers {
    fn settings(&self) -> Option<Settings> {
        let [
            window,
            horizon,
            in_flight,
            in_flight_alone,
            cycle,
            slice_min,
            slice_max,
            overtaking_max,
            hand_over,
            idle_max,
            answer_max,
            start_max,
            paper_token,
        ] = self.spans.map(Span);
        let share = Share::from_parts_per_million;
        Some(Settings {
            sm_limit: self.sm_limit,
            rule: RULES.iter().find(|(name, _)| *name == self.rule)?.1,
            window,
            horizon,
            in_flight,
            in_flight_alone,
            cycle,
            slice_min,
            slice_max,
            overtaking_max,
            hand_over,
            hand_over_share_max: share(self.hand_over_share_max).ok()?,
            idle_max,
            answer_max,
            start_max,
            idle_share_max: share(self.idle_share_max).ok()?,
            paper_token,
        })
    }
}

/// Writer of a record.
pub struct Recorder {
    out: Box<dyn Write + Send>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// Begins a run of a service with these settings. `commit`: build of the program.
    ///
    /// # Errors
    /// Returns an error when the first line cannot be written.
    pub fn new(
        mut out: Box<dyn Write + Send>,
        commit: &str,
        tokens: &Settings,
        memory: MemorySettings,
    ) -> io::Result<Self> {
        let header = Header {
            weir_agent_record: FORMAT,
            commit: commit.to_owned(),
            tokens: tokens.into(),
            memory,
        };
        serde_json::to_writer(&mut out, &header)?;
        out.write_all(b"\n")?;
        Ok(Self { out })
    }

    /// Appends an event and its actions.
    ///
    /// # Errors
    /// Returns an error when they cannot be written, as on a full disk.
    pub fn append(&mut self, at: u64, event: &Event, actions: &[Action]) -> io::Result<()> {
        let actions = actions.iter().map(text).collect();
        serde_json::to_writer(&mut self.out, &Entry { at, event, actions })?;
        self.out.write_all(b"\n")
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// Returns an error when it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn text(action: &Action) -> String {
    format!("{action:?}")
}

/// Outcome of a replay without differences.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replayed {
    /// Build of the program which has written the last run.
    pub commit: String,
    /// Number of runs of an agent.
    pub runs: u64,
    /// Number of events in all runs.
    pub events: u64,
    /// Number of actions in all runs.
    pub actions: u64,
    /// Time from the first event of each run to its last, added up, in nanoseconds.
    pub span_ns: u64,
}

/// Reason why a record cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The record cannot be read.
    #[error("line {line}: {error}")]
    Read {
        /// Line, from 1.
        line: u64,
        /// Error of the reader.
        error: io::Error,
    },
    /// A line is not of a record, or of another version.
    #[error("line {line}: {text}")]
    Format {
        /// Line, from 1.
        line: u64,
        /// What is wrong, and what is allowed.
        text: String,
    },
    /// The actions differ from the recorded ones.
    #[error(
        "line {line}: at {at} ns, action {number} differs\n  event:    {event}\n  recorded: {recorded}\n  replayed: {replayed}"
    )]
    Difference {
        /// Line, from 1.
        line: u64,
        /// Time of the event, in nanoseconds.
        at: u64,
        /// Number of the first action which differs, from 1.
        number: usize,
        /// The event.
        event: String,
        /// Recorded action, or `nothing`.
        recorded: String,
        /// Action now, or `nothing`.
        replayed: String,
    },
}

/// Runs the events of a record through a new service, and compares its actions with the recorded ones. A record may contain
/// several runs, each with a header: every one starts a new service.
///
/// # Errors
/// Returns an error for a record which cannot be read, and for the first difference. The last line of a run which was cut, as by
/// the end of the agent, is ignored.
pub fn replay(record: &mut dyn BufRead) -> Result<Replayed, ReplayError> {
    let mut line = Vec::new();
    let mut replay = None;
    let mut cut: Option<ReplayError> = None;
    let mut number = 0;
    loop {
        number += 1;
        if !read(record, &mut line, number)? {
            return match replay {
                Some(Replay { replayed, .. }) => Ok(replayed),
                None => Err(format_error(number, "the record is empty")),
            };
        }
        let own = match (&mut replay, serde_json::from_slice::<Header>(&line)) {
            (_, Ok(header)) => {
                cut = None;
                let agent = Agent::new(header.settings(number)?).with_memory(header.memory);
                let before = replay.take().map(|replay: Replay| replay.replayed);
                replay = Some(Replay::new(agent, header.commit, before));
                continue;
            }
            (None, Err(_)) => {
                let text = "not a record: written by `gpu-sidecar run --record FILE`";
                return Err(format_error(number, text));
            }
            (Some(own), Err(_)) => own,
        };
        if let Some(error) = cut {
            return Err(error);
        }
        match serde_json::from_slice::<Entry<Event>>(&line) {
            Ok(entry) => own.run(number, &entry)?,
            Err(error) => {
                let is_cut = error.is_eof();
                let error = format_error(number, &error.to_string());
                if !is_cut {
                    return Err(error);
                }
                // Unless another run or nothing follows.
                cut = Some(error);
            }
        }
    }
}

/// A replay in progress.
struct Replay {
    agent: Agent,
    replayed: Replayed,
    /// Time of the first event of this run, in nanoseconds.
    first: Option<u64>,
    /// Time of the runs before this one, in nanoseconds.
    span_before_ns: u64,
    actions: Vec<Action>,
}

impl Replay {
    fn new(agent: Agent, commit: String, before: Option<Replayed>) -> Self {
        let before = before.unwrap_or_default();
        Self {
            agent,
            span_before_ns: before.span_ns,
            replayed: Replayed {
                commit,
                runs: before.runs + 1,
                ..before
            },
            first: None,
            actions: Vec::new(),
        }
    }

    fn run(&mut self, line: u64, entry: &Entry<Event>) -> Result<(), ReplayError> {
        self.actions.clear();
        self.agent.handle(entry.at, &entry.event, &mut self.actions);
        let now: Vec<String> = self.actions.iter().map(text).collect();
        if now != entry.actions {
            let length = now.len().max(entry.actions.len());
            let differs = |at: &usize| now.get(*at) != entry.actions.get(*at);
            let at = (0..length).find(differs).unwrap_or(0);
            let shown = |actions: &[String]| {
                let action = actions.get(at).map(String::as_str);
                action.unwrap_or("nothing").to_owned()
            };
            return Err(ReplayError::Difference {
                line,
                at: entry.at,
                number: at + 1,
                event: format!("{:?}", entry.event),
                recorded: shown(&entry.actions),
                replayed: shown(&now),
            });
        }
        let begin = *self.first.get_or_insert(entry.at);
        self.replayed.span_ns = self.span_before_ns + entry.at.saturating_sub(begin);
        self.replayed.events += 1;
        self.replayed.actions += now.len() as u64;
        Ok(())
    }
}

impl Header {
    fn settings(&self, line: u64) -> Result<Settings, ReplayError> {
        let format = self.weir_agent_record;
        if format != FORMAT {
            let text = format!("format {format}, and this program reads {FORMAT}");
            return Err(format_error(line, &text));
        }
        self.tokens
            .settings()
            .ok_or_else(|| format_error(line, &format!("unknown rule {:?}", self.tokens.rule)))
    }
}

fn format_error(line: u64, text: &str) -> ReplayError {
    ReplayError::Format {
        line,
        text: text.to_owned(),
    }
}

/// Reads a line. Returns `false` at the end.
fn read(record: &mut dyn BufRead, line: &mut Vec<u8>, number: u64) -> Result<bool, ReplayError> {
    line.clear();
    let mut record = io::Read::take(record, LINE_MAX);
    let length = record
        .read_until(b'\n', line)
        .map_err(|error| ReplayError::Read {
            line: number,
            error,
        })?;
    if length as u64 == LINE_MAX {
        return Err(ReplayError::Format {
            line: number,
            text: format!("longer than {LINE_MAX} bytes"),
        });
    }
    if line.last() == Some(&b'\n') {
        // A line which was cut ends too early, not with an unexpected character.
        line.pop();
    }
    Ok(length > 0)
}

/// Serialization of types of other crates.
pub(crate) mod wire {
    pub(crate) mod process {
        use policy::tokens::ProcessId;
        use serde::{Deserialize, Deserializer, Serializer};

        pub(crate) fn serialize<S: Serializer>(
            process: &ProcessId,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            to.serialize_u32(process.0)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<ProcessId, D::Error> {
            u32::deserialize(from).map(ProcessId)
        }
    }

    pub(crate) mod streaming {
        use protocol::page::Streaming;
        use serde::{Deserialize, Deserializer, Serializer};

        pub(crate) fn serialize<S: Serializer>(own: &Streaming, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_u32(*own as u32)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Streaming, D::Error> {
            u32::deserialize(from).map(Streaming::from_number)
        }
    }

    pub(crate) mod rule {
        use policy::pool::leases::Rule;
        use serde::{Deserialize, Deserializer, Serializer, de};

        #[expect(
            clippy::trivially_copy_pass_by_ref,
            reason = "the form that serde wants"
        )]
        pub(crate) fn serialize<S: Serializer>(own: &Rule, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(own.name())
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Rule, D::Error> {
            let name = String::deserialize(from)?;
            let unknown = || de::Error::custom(format!("no rule of leases is named {name:?}"));
            Rule::named(&name).ok_or_else(unknown)
        }
    }

    /// Messages as they are on the wire, in hexadecimal digits.
    mod digits {
        use std::fmt::Write as _;

        use protocol::message::Malformed;
        use serde::{Deserialize, Deserializer, Serializer, de};

        pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
            let mut digits = String::new();
            for byte in bytes {
                let _string = write!(digits, "{byte:02x}");
            }
            to.serialize_str(&digits)
        }

        pub(super) fn deserialize<'de, D: Deserializer<'de>, T>(
            from: D,
            read: impl Fn(&[u8]) -> Result<T, Malformed>,
        ) -> Result<T, D::Error> {
            let digits = String::deserialize(from)?;
            let byte = |pair: &[u8]| {
                let pair = str::from_utf8(pair).ok()?;
                u8::from_str_radix(pair, 16).ok()
            };
            let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
            let bytes = bytes.ok_or_else(|| de::Error::custom("not hexadecimal digits"))?;
            read(&bytes).map_err(de::Error::custom)
        }
    }

    pub(crate) mod from_process {
        use protocol::message::FromProcess;
        use serde::{Deserializer, Serializer};

        pub(crate) fn serialize<S: Serializer>(
            message: &FromProcess,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            super::digits::serialize(message.write().finish(), to)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<FromProcess, D::Error> {
            super::digits::deserialize(from, FromProcess::read)
        }
    }

    pub(crate) mod from_queue {
        use protocol::queue::FromQueue;
        use serde::{Deserializer, Serializer};

        pub(crate) fn serialize<S: Serializer>(
            message: &FromQueue,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            super::digits::serialize(message.write().finish(), to)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<FromQueue, D::Error> {
            super::digits::deserialize(from, FromQueue::read)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn record(runs: u32) -> Vec<u8> {
        let out = Shared::default();
        for _run in 0..runs {
            let tokens = Settings::default();
            let mut agent = Agent::new(tokens);
            let mut recorder = Recorder::new(
                Box::new(out.clone()),
                "test",
                &tokens,
                MemorySettings::default(),
            )
            .unwrap();
            for (at, event) in [(5, Event::FiguresWanted), (1_000, Event::Wake)] {
                let mut actions = Vec::new();
                agent.handle(at, &event, &mut actions);
                recorder.append(at, &event, &actions).unwrap();
            }
        }
        out.0.lock().unwrap().clone()
    }

    #[test]
    fn a_record_replays_without_differences_even_if_its_last_line_is_cut() {
        let mut bytes = record(2);
        let replayed = replay(&mut bytes.as_slice()).unwrap();
        assert_eq!((replayed.runs, replayed.events), (2, 4));
        assert_eq!(replayed.span_ns, 2 * 995);
        bytes.truncate(bytes.len() - 5);
        assert_eq!(replay(&mut bytes.as_slice()).unwrap().events, 3);
        // A second run follows the cut line.
        bytes.push(b'\n');
        bytes.extend(record(1));
        let replayed = replay(&mut bytes.as_slice()).unwrap();
        assert_eq!((replayed.runs, replayed.events), (3, 5));
    }

    #[test]
    fn the_first_difference_is_reported_with_its_line() {
        let text = String::from_utf8(record(1)).unwrap();
        let other = text.replace("\"Publish\"", "\"Forget(ProcessId(1))\"");
        let error = replay(&mut other.as_bytes()).unwrap_err().to_string();
        assert!(
            error.starts_with("line 2: at 5 ns, action 1 differs"),
            "{error}"
        );
        assert!(error.ends_with("replayed: Publish"), "{error}");
    }

    #[test]
    fn other_files_are_rejected() {
        for (bytes, text) in [
            ("", "line 1: the record is empty"),
            ("{}\n", "line 1: not a record"),
            ("x", "line 1: not a record"),
        ] {
            let error = replay(&mut bytes.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
        let mut text = String::from_utf8(record(1)).unwrap();
        text.push_str("{\"at\":1,\"event\":\"Nothing\",\"actions\":[]}\n");
        let error = replay(&mut text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 4: unknown variant"), "{error}");
        let newer = text.replace("\"weir_agent_record\":1", "\"weir_agent_record\":9");
        let error = replay(&mut newer.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 1: format 9, and this program reads 1");
    }

    #[test]
    fn settings_survive_a_record() {
        let settings = Settings {
            rule: Rule::ReactiveBucket,
            horizon: Span::from_secs(7),
            ..Settings::default()
        };
        assert_eq!(TokenNumbers::from(&settings).settings(), Some(settings));
    }
}
