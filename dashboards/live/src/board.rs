//! Answers of programs, put together. Asks nobody, and reads no clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use policy::window::{Counts, Window};
use policy::{Span, Time};

use crate::answers::{AgentEvent, DataAnswer, SlotsAnswer};
use crate::state::{EventState, FunctionState, LeftOut, SlotState, Standing, State};

/// Functions of a state, at most.
pub const FUNCTIONS_MAX: usize = 500;
/// Slots of a state, at most.
pub const SLOTS_MAX: usize = 256;
/// Events of a state, at most.
pub const EVENTS_MAX: usize = 200;
/// Bytes of an event's text, at most.
const TEXT_BYTES_MAX: usize = 400;
/// Over this time requests in time are counted.
const ATTAINMENT: Span = Span::from_secs(300);

/// A function's namespace and name.
type Name = (String, String);

/// What is remembered of earlier answers.
#[derive(Debug, Default)]
pub struct Board {
    windows: BTreeMap<Name, Window>,
    /// Whether role `data` has answered before: a source that comes later has counted nothing earlier.
    is_known: bool,
    /// The number of the last event, by node.
    sequences: BTreeMap<String, u64>,
    /// The earliest first.
    events: VecDeque<EventState>,
}

/// What an agent has answered: its slots, and events since it was last asked.
pub type AgentAnswer = (SlotsAnswer, Vec<AgentEvent>);

/// All answers of a moment. Programs that have not answered have `None`.
#[derive(Debug, Default)]
pub struct Answers {
    /// By the pod's name.
    pub data: Vec<(String, Option<DataAnswer>)>,
    /// By the node's name.
    pub agents: Vec<(String, Option<AgentAnswer>)>,
    /// What happened where the page is served.
    pub events: Vec<EventState>,
    /// What else is not known.
    pub notices: Vec<String>,
}

impl Board {
    /// Returns the number of the last event of a node's agent, after which it is to be asked.
    #[must_use]
    pub fn sequence(&self, node: &str) -> u64 {
        self.sequences.get(node).copied().unwrap_or(0)
    }

    /// Takes the answers of `now`, which does not go back and is `unix_ms` by the wall clock. `is_attached` says of a revision whether its
    /// requests come to role `data`, where that is known.
    pub fn observe(
        &mut self,
        (now, unix_ms): (Time, u64),
        answers: Answers,
        is_attached: impl Fn(&str, &str) -> Option<bool>,
    ) -> State {
        let mut notices = answers.notices;
        for (pod, answer) in &answers.data {
            if answer.is_none() {
                notices.push(format!(
                    "{pod} does not answer: functions that it owns are missing or stand still"
                ));
            }
        }
        if answers.data.is_empty() {
            notices.push("there is no pod of role data: all requests go Knative's way".to_owned());
        }
        let functions = self.functions(now, &answers.data, is_attached);
        let mut slots = Vec::new();
        for (node, answer) in answers.agents {
            let Some((answer, events)) = answer else {
                notices.push(format!("the agent of {node} does not answer"));
                continue;
            };
            self.take_events(&node, events);
            slots.extend(answer.slots.into_iter().map(|own| SlotState {
                node: node.clone(),
                slot: own.slot,
                product: own.product,
                kind: own.kind,
                lost: own.lost,
                holders: own.tokens.map_or(0, |tokens| tokens.holders),
                waiters: own.tokens.map_or(0, |tokens| tokens.waiters),
                busy: own.recent.busy_percent,
            }));
        }
        slots.sort_by(|a, b| (&a.node, &a.slot).cmp(&(&b.node, &b.slot)));
        for event in answers.events {
            self.push(event);
        }
        let left_out = LeftOut {
            functions: functions.len().saturating_sub(FUNCTIONS_MAX),
            slots: slots.len().saturating_sub(SLOTS_MAX),
        };
        slots.truncate(SLOTS_MAX);
        let mut functions = functions;
        functions.truncate(FUNCTIONS_MAX);
        // How a function stands changes every second; where it is found does not.
        let attained =
            |own: &FunctionState| (attainment(own), own.namespace.clone(), own.name.clone());
        functions.sort_by_cached_key(attained);
        let mut events: Vec<_> = self.events.iter().cloned().collect();
        events.sort_by_key(|event| Reverse(event.unix_ms));
        State {
            unix_ms,
            functions,
            slots,
            events,
            notices,
            left_out,
        }
    }

    fn functions(
        &mut self,
        now: Time,
        answers: &[(String, Option<DataAnswer>)],
        is_attached: impl Fn(&str, &str) -> Option<bool>,
    ) -> Vec<FunctionState> {
        let mut all: BTreeMap<Name, FunctionState> = BTreeMap::new();
        // By address: a pod that another one has ejected gets requests from some only.
        let mut instances: BTreeMap<Name, BTreeMap<&str, bool>> = BTreeMap::new();
        let mut detached: BTreeSet<Name> = BTreeSet::new();
        for (pod, answer) in answers {
            for own in answer.iter().flat_map(|answer| &answer.functions) {
                let name = (own.namespace.clone(), own.function.clone());
                let function = all.entry(name.clone()).or_insert_with(|| FunctionState {
                    namespace: own.namespace.clone(),
                    name: own.function.clone(),
                    ..FunctionState::default()
                });
                function.waiting = function.waiting.saturating_add(own.waiting);
                for (sum, count) in function.by_slack.iter_mut().zip(&own.waiting_by_slack) {
                    *sum = sum.saturating_add(*count);
                }
                for instance in &own.instances {
                    function.running = function.running.saturating_add(instance.requests);
                    let known = instances.entry(name.clone()).or_default();
                    *known.entry(&instance.address).or_insert(true) &= !instance.ejected;
                }
                let window = self.windows.entry(name.clone()).or_default();
                for variant in &own.variants {
                    let counts = Counts {
                        judged: variant.judged,
                        in_time: variant.in_time,
                    };
                    window.observe(now, source(pod, &variant.revision), counts, self.is_known);
                    let shortest = [function.objective_ms, variant.objective_ms];
                    function.objective_ms = shortest.into_iter().flatten().min();
                    function.percentile = function.percentile.or(variant.percentile);
                    if is_attached(&own.namespace, &variant.revision) == Some(false) {
                        detached.insert(name.clone());
                    }
                }
            }
        }
        self.is_known |= answers.iter().any(|(_, answer)| answer.is_some());
        if answers.iter().all(|(_, answer)| answer.is_some()) {
            self.windows.retain(|name, _| all.contains_key(name));
        }
        let mut functions: Vec<_> = all.into_iter().collect();
        for (name, function) in &mut functions {
            if let Some(window) = self.windows.get(name) {
                let counts = window.counts(now, ATTAINMENT);
                (function.judged, function.in_time) = (counts.judged, counts.in_time);
            }
            for is_ready in instances.get(name).into_iter().flat_map(BTreeMap::values) {
                function.ready += u64::from(*is_ready);
                function.ejected += u64::from(!*is_ready);
            }
            function.state = standing(function, detached.contains(name));
        }
        functions.sort_by_cached_key(|(name, function)| {
            // The first three need attention, whatever their attainment.
            let rank = function.state.min(Standing::Detached);
            (rank, attainment(function), name.clone())
        });
        functions
            .into_iter()
            .map(|(_, function)| function)
            .collect()
    }

    fn take_events(&mut self, node: &str, events: Vec<AgentEvent>) {
        for event in events {
            let last = self.sequences.entry(node.to_owned()).or_default();
            *last = event.sequence.max(*last);
            let about = match (event.slot, event.pod) {
                (_, Some(pod)) => pod,
                (Some(slot), None) => format!("{node}/{slot}"),
                (None, None) => node.to_owned(),
            };
            self.push(EventState {
                unix_ms: event.unix_ms,
                kind: event.kind,
                about,
                text: event.text,
            });
        }
    }

    fn push(&mut self, mut event: EventState) {
        let end = event.text.floor_char_boundary(TEXT_BYTES_MAX);
        event.text.truncate(end);
        self.events.push_back(event);
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }
}

fn standing(function: &FunctionState, is_detached: bool) -> Standing {
    if function.by_slack[0] > 0 {
        Standing::Late
    } else if function.waiting > 0 && function.ready == 0 {
        Standing::ColdStart
    } else if function.ejected > 0 {
        Standing::Ejected
    } else if is_detached {
        Standing::Detached
    } else if function.ready > 0 {
        Standing::Serving
    } else {
        Standing::Idle
    }
}

/// The part in time in ten-thousandths; where nothing was judged, as if all were.
fn attainment(function: &FunctionState) -> u32 {
    let counts = Counts {
        judged: function.judged,
        in_time: function.in_time,
    };
    counts.ratio().unwrap_or(10_000)
}

/// The number by which a window knows what a pod counts of a revision: FNV-1a.
fn source(pod: &str, revision: &str) -> u64 {
    let bytes = pod.bytes().chain([b'/']).chain(revision.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{AgentSlot, DataFunction, DataInstance, DataVariant};

    fn function(
        name: &str,
        judged: u64,
        in_time: u64,
        by_slack: [u64; 5],
        ejected: &[bool],
    ) -> DataFunction {
        let variant = DataVariant {
            revision: format!("{name}-00001"),
            objective_ms: Some(200),
            percentile: Some(98.0),
            judged,
            in_time,
        };
        let instances = (1..).zip(ejected).map(|(number, ejected)| DataInstance {
            address: format!("10.0.0.{number}:8012"),
            revision: variant.revision.clone(),
            requests: 1,
            ejected: *ejected,
        });
        DataFunction {
            namespace: "default".to_owned(),
            function: name.to_owned(),
            waiting: by_slack.iter().sum(),
            waiting_by_slack: by_slack.to_vec(),
            instances: instances.collect(),
            variants: vec![variant],
        }
    }

    fn answered(functions: Vec<DataFunction>) -> Answers {
        Answers {
            data: vec![("data-0".to_owned(), Some(DataAnswer { functions }))],
            ..Answers::default()
        }
    }

    fn at(second: u64) -> (Time, u64) {
        (Time(second * 1_000_000_000), second * 1_000)
    }

    #[test]
    fn the_worst_attainment_comes_first_and_each_function_says_how_it_stands() {
        let mut board = Board::default();
        let none = [0; 5];
        let all = |judged: u64| {
            answered(vec![
                function("idle", 0, 0, none, &[]),
                function("good", judged, judged, none, &[false]),
                function("bad", judged, judged / 2, none, &[false]),
                function("late", judged, judged, [1, 0, 0, 0, 0], &[false]),
                function("cold", 0, 0, [0, 0, 3, 0, 0], &[]),
                function("half", judged, judged, none, &[false, true]),
            ])
        };
        // What was counted before it was first seen is of any time.
        let first = board.observe(at(1), all(1_000), |_, _| Some(true));
        assert!(first.functions.iter().all(|own| own.judged == 0));
        let state = board.observe(at(2), all(1_100), |_, _| Some(true));
        let names: Vec<_> = state
            .functions
            .iter()
            .map(|own| (&*own.name, own.state))
            .collect();
        assert_eq!(
            names,
            [
                ("bad", Standing::Serving),
                ("cold", Standing::ColdStart),
                ("good", Standing::Serving),
                ("half", Standing::Ejected),
                ("idle", Standing::Idle),
                ("late", Standing::Late),
            ]
        );
        let bad = &state.functions[0];
        assert_eq!(
            (bad.judged, bad.in_time, bad.ready, bad.running),
            (100, 50, 1, 1)
        );
        assert_eq!(state.functions[1].by_slack, [0, 0, 3, 0, 0]);
        let state = board.observe(at(3), all(1_100), |_, name| Some(name != "good-00001"));
        assert_eq!(state.functions[2].state, Standing::Detached);
        // Five minutes later nothing is left of it.
        let state = board.observe(at(400), all(1_100), |_, _| None);
        assert!(state.functions.iter().all(|own| own.judged == 0));
    }

    #[test]
    fn what_does_not_answer_is_said_and_what_there_is_no_room_for_is_counted() {
        let mut board = Board::default();
        let functions =
            (0..FUNCTIONS_MAX + 3).map(|n| function(&format!("f{n}"), 0, 0, [0; 5], &[]));
        // One that needs attention is not left out.
        let late = function("z", 0, 0, [1, 0, 0, 0, 0], &[]);
        let mut answers = answered(functions.chain([late]).collect());
        answers.data.push(("data-1".to_owned(), None));
        answers.agents.push(("node-1".to_owned(), None));
        let slots = (0..SLOTS_MAX + 2).map(|n| AgentSlot {
            slot: n.to_string(),
            ..AgentSlot::default()
        });
        let slots = SlotsAnswer {
            slots: slots.collect(),
        };
        answers
            .agents
            .push(("node-0".to_owned(), Some((slots, Vec::new()))));
        let state = board.observe(at(1), answers, |_, _| None);
        assert_eq!(
            state.left_out,
            LeftOut {
                functions: 4,
                slots: 2
            }
        );
        assert_eq!(
            (state.functions.len(), state.slots.len()),
            (FUNCTIONS_MAX, SLOTS_MAX)
        );
        assert!(state.functions.iter().any(|own| own.name == "z"));
        assert_eq!(state.notices.len(), 2, "{:?}", state.notices);
        let state = board.observe(at(2), Answers::default(), |_, _| None);
        assert!(
            state.notices[0].contains("no pod of role data"),
            "{:?}",
            state.notices
        );
    }

    #[test]
    fn events_are_asked_for_once_and_the_latest_are_kept() {
        let mut board = Board::default();
        let event = |sequence: u64| AgentEvent {
            sequence,
            unix_ms: sequence,
            kind: "pod-added".to_owned(),
            text: "ü".repeat(TEXT_BYTES_MAX),
            ..AgentEvent::default()
        };
        let events = (1..=EVENTS_MAX as u64 + 5).map(event).collect();
        let mut answers = answered(Vec::new());
        answers
            .agents
            .push(("node-0".to_owned(), Some((SlotsAnswer::default(), events))));
        let state = board.observe(at(1), answers, |_, _| None);
        assert_eq!(board.sequence("node-0"), EVENTS_MAX as u64 + 5);
        assert_eq!(board.sequence("node-1"), 0);
        assert_eq!(state.events.len(), EVENTS_MAX);
        assert_eq!(
            (state.events[0].unix_ms, &*state.events[0].about),
            (205, "node-0")
        );
        assert_eq!(state.events[0].text.len(), TEXT_BYTES_MAX);
    }
}
