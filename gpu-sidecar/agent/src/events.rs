//! Event log of the node, for operators: a ring buffer of the last [`EVENTS_MAX`] events, and streams of later ones.
//!
//! Writers never wait for slow readers: a reader that is more than one ring behind loses events and receives an error.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use agent_core::EventKind;
use serde::Serialize;
use tokio::sync::broadcast;

/// Capacity of the ring of past events, and the number of events that a stream may be behind.
pub const EVENTS_MAX: usize = 1_024;
/// Maximum length of an event's text, in bytes; a longer text is truncated at a character boundary.
const TEXT_MAX: usize = 1_024;

/// An entry of the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Sequence number, one higher than that of the previous event. An agent starts at the microseconds since 1970, so that
    /// numbers also increase across restarts.
    pub sequence: u64,
    /// Time of the event, in milliseconds since 1970 (UTC).
    pub unix_ms: u64,
    /// Kind of the event.
    pub kind: EventKind,
    /// Name of the slot concerned, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// `namespace/name` of the pod concerned, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Human-readable description, at most 1,024 bytes.
    pub text: String,
}

/// The ring of past events and the stream of new ones.
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
    /// Creates an empty log with higher sequence numbers than those of all earlier agents on the node.
    pub(crate) fn of_a_new_agent() -> Self {
        Self::after(u64::try_from(since_1970().as_micros()).unwrap_or(0))
    }

    /// Creates an empty log with `sequence + 1` as the number of its first event.
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

    /// Returns the last `most` events after the one with this sequence number. Where that number is still unused, it comes from
    /// an earlier agent with a clock that was ahead, and the last `most` of all events are returned.
    pub(crate) fn later(&self, sequence: u64, most: usize) -> Vec<Arc<Event>> {
        let mut later = self.past();
        let is_known = later.last().is_some_and(|event| event.sequence >= sequence);
        later.retain(|event| !is_known || event.sequence > sequence);
        later.split_off(later.len().saturating_sub(most))
    }

    /// Appends an event, sends it to all streams and logs it. `slot` is a slot's name, `pod` a pod's `namespace/name`; both may
    /// be empty.
    pub fn record(&self, kind: EventKind, slot: &str, pod: &str, text: impl Into<String>) {
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
        // Under the lock, so that a new reader gets each event exactly once. Sending fails when there are no readers.
        let _none = self.stream.send(event);
    }

    /// Returns the past events and a receiver of all later ones, without a gap or a duplicate.
    pub(crate) fn subscribe(&self) -> (Vec<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let past = ring.events.iter().cloned().collect();
        (past, self.stream.subscribe())
    }

    /// Returns the events in the ring, the oldest first.
    #[must_use]
    pub fn past(&self) -> Vec<Arc<Event>> {
        self.subscribe().0
    }
}

/// Returns the time of the wall clock since 1970.
fn since_1970() -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "events show the time of day to operators"
    )]
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_latest_events() {
        let events = Events::default();
        for number in 0..EVENTS_MAX + 10 {
            events.record(EventKind::PodAdded, "0", "", number.to_string());
        }
        let past = events.past();
        assert_eq!(past.len(), EVENTS_MAX);
        assert_eq!((past[0].sequence, past[0].text.as_str()), (11, "10"));
        assert_eq!((past[0].slot.as_deref(), &past[0].pod), (Some("0"), &None));
    }

    #[test]
    fn later_returns_the_last_events_after_a_number() {
        let events = Events::after(1_000);
        for number in 0..10 {
            events.record(EventKind::PodAdded, "", "", number.to_string());
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
    fn a_long_text_is_truncated_at_a_character() {
        let events = Events::default();
        events.record(EventKind::PodRefused, "", "", "ü".repeat(TEXT_MAX));
        assert_eq!(events.past()[0].text.len(), TEXT_MAX);
    }
}
