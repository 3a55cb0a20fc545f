//! What happened on the node, for operators: a ring of the last [`EVENTS_MAX`] events, and streams of those to come.
//!
//! Nobody who reads slowly is waited for: a reader that is more than a ring behind has lost events and is told so.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::broadcast;

/// Past events that are kept, and events that a stream may be behind.
pub const EVENTS_MAX: usize = 1_024;
/// Bytes of an event's text, at most.
const TEXT_MAX: usize = 1_024;

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "their names say it")]
pub enum EventKind {
    AgentStarted,
    AgentStopping,
    SlotAdded,
    SlotLost,
    SlotBack,
    NvmlUnavailable,
    DeviceError,
    MpsUp,
    MpsDown,
    MpsUnable,
    MpsClientsFailed,
    PodAdded,
    PodChanged,
    PodRemoved,
    PodRefused,
    ProcessConnected,
    ProcessGone,
    ProcessRefused,
    ProcessReport,
    ProcessKilled,
    MemoryDisagrees,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Counted up with each. An agent begins with the microseconds since 1970, so that numbers rise over its restarts.
    pub sequence: u64,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    /// What.
    pub kind: EventKind,
    /// The slot's name, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// `namespace/name` of the pod, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// For people.
    pub text: String,
}

/// All events.
#[derive(Debug)]
pub struct Events {
    ring: Mutex<Ring>,
    stream: broadcast::Sender<Arc<Event>>,
}

#[derive(Debug, Default)]
struct Ring {
    sequence: u64,
    events: std::collections::VecDeque<Arc<Event>>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            ring: Mutex::default(),
            stream: broadcast::Sender::new(EVENTS_MAX),
        }
    }
}

impl Events {
    /// No events; those to come have higher numbers than those of the agents before this one.
    pub(crate) fn of_a_new_agent() -> Self {
        Self::after(u64::try_from(since_1970().as_micros()).unwrap_or(0))
    }

    /// No events, the next of which has the sequence number behind this one.
    fn after(sequence: u64) -> Self {
        let ring = Ring {
            sequence,
            ..Ring::default()
        };
        Self {
            ring: Mutex::new(ring),
            ..Self::default()
        }
    }

    /// Returns the last `most` of the events behind the one of this sequence number; of all, if there is none of so high a number yet:
    /// it is of an agent before this one, whose clock was ahead.
    pub(crate) fn later(&self, sequence: u64, most: usize) -> Vec<Arc<Event>> {
        let mut later = self.past();
        let is_known = later.last().is_some_and(|event| event.sequence >= sequence);
        later.retain(|event| !is_known || event.sequence > sequence);
        later.split_off(later.len().saturating_sub(most))
    }

    /// Tells one, also in the log. `slot` is a slot's name, `pod` a pod's `namespace/name`; both may be empty.
    pub fn tell(&self, kind: EventKind, slot: &str, pod: &str, text: impl Into<String>) {
        let mut text: String = text.into();
        if text.len() > TEXT_MAX {
            let end = (0..=TEXT_MAX).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or(0));
        }
        tracing::info!(event = ?kind, slot, pod, "{text}");
        let now = since_1970();
        let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.sequence += 1;
        let event = Arc::new(Event {
            sequence: ring.sequence,
            unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            kind,
            slot: named(slot),
            pod: named(pod),
            text,
        });
        if ring.events.len() == EVENTS_MAX {
            ring.events.pop_front();
        }
        ring.events.push_back(Arc::clone(&event));
        // Under the lock, so that a new reader gets each event once. Nobody may listen.
        let _none = self.stream.send(event);
    }

    /// Past events, and those to come.
    pub(crate) fn subscribe(&self) -> (Vec<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let past = ring.events.iter().cloned().collect();
        (past, self.stream.subscribe())
    }

    /// Past events.
    #[must_use]
    pub fn past(&self) -> Vec<Arc<Event>> {
        self.subscribe().0
    }
}

/// By the wall clock.
fn since_1970() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "when it was, for people")]
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_events_are_kept() {
        let events = Events::default();
        for number in 0..EVENTS_MAX + 10 {
            events.tell(EventKind::PodAdded, "0", "", number.to_string());
        }
        let past = events.past();
        assert_eq!(past.len(), EVENTS_MAX);
        assert_eq!((past[0].sequence, past[0].text.as_str()), (11, "10"));
        assert_eq!((past[0].slot.as_deref(), &past[0].pod), (Some("0"), &None));
    }

    #[test]
    fn later_events_are_the_last_ones_behind_a_number() {
        let events = Events::after(1_000);
        for number in 0..10 {
            events.tell(EventKind::PodAdded, "", "", number.to_string());
        }
        let numbers = |after, most| {
            let later = events.later(after, most);
            later.iter().map(|event| event.sequence).collect::<Vec<_>>()
        };
        assert_eq!(numbers(0, 3), [1_008, 1_009, 1_010]);
        assert_eq!(numbers(1_009, 3), [1_010]);
        assert!(numbers(1_010, 3).is_empty());
        assert_eq!(numbers(9_000, 3), [1_008, 1_009, 1_010]);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let events = Events::default();
        events.tell(EventKind::PodRefused, "", "", "ü".repeat(TEXT_MAX));
        assert_eq!(events.past()[0].text.len(), TEXT_MAX);
    }
}
