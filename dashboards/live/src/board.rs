//! The combination of programs' answers into a state, without I/O and without a clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use policy::Time;
use policy::window::Counts;

use crate::answers::{AgentEvent, AgentSlot, DataAnswer, SlotsAnswer};
use crate::attainment::{Attainment, Name};
use crate::state::{EventState, FunctionState, FunctionStatus, LeftOut, SlotState, State};

/// Largest number of functions in a state.
pub const FUNCTIONS_MAX: usize = 500;
/// Largest number of slots in a state.
pub const SLOTS_MAX: usize = 256;
/// Largest number of events in a state.
pub const EVENTS_MAX: usize = 200;
/// Largest number of slots per node.
const NODE_SLOTS_MAX: usize = 1_024;
/// Largest number of notices in a state.
const NOTICES_MAX: usize = 20;
/// Largest text in bytes; longer ones are cut.
const TEXT_BYTES_MAX: usize = 400;
/// Largest name in bytes, Kubernetes' own bound of most names.
const NAME_BYTES_MAX: usize = 253;
/// Number of cells in a slot's last five minutes.
const CELLS_MAX: usize = 60;

/// The data kept from one state to the next.
#[derive(Debug, Default)]
pub struct Board {
    attainment: Attainment,
    /// Number of the last event, by node.
    sequences: BTreeMap<String, u64>,
    /// Recent events, the latest first.
    events: Vec<EventState>,
}

/// An agent's slots, and its events since the last query.
pub type AgentAnswer = (SlotsAnswer, Vec<AgentEvent>);

/// All answers at one time; `None` for programs that have not answered.
#[derive(Debug, Default)]
pub struct Answers {
    /// Answers of role `data` by the pod's name.
    pub data: Vec<(String, Option<DataAnswer>)>,
    /// Answers of agents by the node's name.
    pub agents: Vec<(String, Option<AgentAnswer>)>,
    /// Events of the process that serves the page.
    pub events: Vec<EventState>,
    /// Further notices about missing information.
    pub notices: Vec<String>,
}

impl Board {
    /// Returns the number of the last event of a node's agent: query the events after it.
    #[must_use]
    pub fn sequence(&self, node: &str) -> u64 {
        self.sequences.get(node).copied().unwrap_or(0)
    }

    /// Returns the state by the answers at `now`, which must not decrease and is `unix_ms` by the wall clock.
    /// `is_attached` returns whether a revision's requests come to role `data`, if that is known.
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
                    "{pod} does not answer: functions that it owns are missing or outdated"
                ));
            }
        }
        if answers.data.is_empty() {
            notices.push("there is no pod of role data: all requests go Knative's way".to_owned());
        }
        let functions = self.functions(now, &answers.data, is_attached);
        let mut slots = Vec::new();
        let nodes: BTreeSet<_> = answers
            .agents
            .iter()
            .map(|(node, _)| node.clone())
            .collect();
        self.sequences.retain(|node, _| nodes.contains(node));
        for (node, answer) in answers.agents {
            let Some((answer, events)) = answer else {
                notices.push(format!("the agent of {node} does not answer"));
                continue;
            };
            self.take_events(&node, unix_ms, events);
            let own = answer.slots.into_iter().take(NODE_SLOTS_MAX);
            slots.extend(own.map(|own| slot_state(&node, own)));
        }
        slots.sort_by(|a, b| (&a.node, &a.slot).cmp(&(&b.node, &b.slot)));
        slots.dedup_by(|a, b| (&a.node, &a.slot) == (&b.node, &b.slot));
        self.events.extend(answers.events);
        // Sorted by their own times, not by those of the answers.
        self.events.sort_by_key(|event| Reverse(event.unix_ms));
        self.events.truncate(EVENTS_MAX);
        notices.truncate(NOTICES_MAX);
        let left_out = LeftOut {
            functions: functions.len().saturating_sub(FUNCTIONS_MAX),
            slots: slots.len().saturating_sub(SLOTS_MAX),
        };
        slots.truncate(SLOTS_MAX);
        let mut functions = functions;
        functions.truncate(FUNCTIONS_MAX);
        // A function's attainment changes every second; its position in the list should not.
        let attained =
            |own: &FunctionState| (attainment(own), own.namespace.clone(), own.name.clone());
        functions.sort_by_cached_key(attained);
        State {
            unix_ms,
            functions,
            slots,
            events: self.events.clone(),
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
        // Instances by address: one pod may have ejected an instance to which others send requests.
        let mut instances: BTreeMap<Name, BTreeMap<&str, bool>> = BTreeMap::new();
        let mut detached: BTreeSet<Name> = BTreeSet::new();
        for (_, answer) in answers {
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
                for variant in &own.variants {
                    let shortest = [function.objective_ms, variant.objective_ms];
                    function.objective_ms = shortest.into_iter().flatten().min();
                    function.percentile = function.percentile.or(variant.percentile);
                    if is_attached(&own.namespace, &variant.revision) == Some(false) {
                        detached.insert(name.clone());
                    }
                }
            }
        }
        self.attainment.observe(now, answers);
        let mut functions: Vec<_> = all.into_iter().collect();
        for (name, function) in &mut functions {
            let counts = self.attainment.counts(now, name);
            (function.judged, function.in_time) = (counts.judged, counts.in_time);
            for is_ready in instances.get(name).into_iter().flat_map(BTreeMap::values) {
                function.ready += u64::from(*is_ready);
                function.ejected += u64::from(!*is_ready);
            }
            function.state = status_of(function, detached.contains(name));
        }
        functions.sort_by_cached_key(|(name, function)| {
            // The first three need attention, whatever their attainment.
            let rank = function.state.min(FunctionStatus::Detached);
            (rank, attainment(function), name.clone())
        });
        functions
            .into_iter()
            .map(|(_, function)| function)
            .collect()
    }

    fn take_events(&mut self, node: &str, now_ms: u64, events: Vec<AgentEvent>) {
        for event in events {
            // A restarted agent continues with higher numbers, unless its clock was set back.
            self.sequences.insert(node.to_owned(), event.sequence);
            let about = match (event.slot, event.pod) {
                (_, Some(pod)) => pod,
                (Some(slot), None) => format!("{node}/{slot}"),
                (None, None) => node.to_owned(),
            };
            self.events.push(EventState {
                // Events of a node whose clock is ahead do not stay on top.
                unix_ms: event.unix_ms.min(now_ms),
                kind: short(event.kind, NAME_BYTES_MAX),
                about: short(about, 2 * NAME_BYTES_MAX),
                text: short(event.text, TEXT_BYTES_MAX),
            });
        }
    }
}

/// Returns a text cut to at most `most` bytes, at the boundary of a character.
fn short(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

fn slot_state(node: &str, own: AgentSlot) -> SlotState {
    let mut busy = own.recent.busy_percent;
    let busy = busy.split_off(busy.len().saturating_sub(CELLS_MAX));
    SlotState {
        node: node.to_owned(),
        slot: short(own.slot, NAME_BYTES_MAX),
        product: short(own.product, NAME_BYTES_MAX),
        kind: short(own.kind, NAME_BYTES_MAX),
        lost: own.lost.map(|why| short(why, TEXT_BYTES_MAX)),
        holders: own.tokens.map_or(0, |tokens| tokens.holders),
        waiters: own.tokens.map_or(0, |tokens| tokens.waiters),
        busy,
    }
}

fn status_of(function: &FunctionState, is_detached: bool) -> FunctionStatus {
    if function.by_slack[0] > 0 {
        FunctionStatus::Late
    } else if function.waiting > 0 && function.ready == 0 {
        FunctionStatus::ColdStart
    } else if function.ejected > 0 {
        FunctionStatus::Ejected
    } else if is_detached {
        FunctionStatus::Detached
    } else if function.ready > 0 {
        FunctionStatus::Serving
    } else {
        FunctionStatus::Idle
    }
}

/// Returns the share in time in ten-thousandths; 10,000 if nothing was judged.
fn attainment(function: &FunctionState) -> u32 {
    let counts = Counts {
        judged: function.judged,
        in_time: function.in_time,
    };
    counts.ratio().unwrap_or(10_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{AgentRecent, DataFunction, DataInstance, DataVariant};

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
    fn the_worst_attainment_comes_first_and_each_function_has_its_state() {
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
        // Counts at the first answer may date from any time.
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
                ("bad", FunctionStatus::Serving),
                ("cold", FunctionStatus::ColdStart),
                ("good", FunctionStatus::Serving),
                ("half", FunctionStatus::Ejected),
                ("idle", FunctionStatus::Idle),
                ("late", FunctionStatus::Late),
            ]
        );
        let bad = &state.functions[0];
        assert_eq!(
            (bad.judged, bad.in_time, bad.ready, bad.running),
            (100, 50, 1, 1)
        );
        assert_eq!(state.functions[1].by_slack, [0, 0, 3, 0, 0]);
        let state = board.observe(at(3), all(1_100), |_, name| Some(name != "good-00001"));
        assert_eq!(state.functions[2].state, FunctionStatus::Detached);
        // Five minutes later the window is empty.
        let state = board.observe(at(400), all(1_100), |_, _| None);
        assert!(state.functions.iter().all(|own| own.judged == 0));
    }

    #[test]
    fn silent_programs_are_reported_and_omitted_entries_counted() {
        let mut board = Board::default();
        let functions =
            (0..FUNCTIONS_MAX + 3).map(|n| function(&format!("f{n}"), 0, 0, [0; 5], &[]));
        // A function that needs attention is not omitted.
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

    fn of_node(node: &str, slots: Vec<AgentSlot>, events: Vec<AgentEvent>) -> Answers {
        let mut answers = answered(Vec::new());
        let answer = (SlotsAnswer { slots }, events);
        answers.agents.push((node.to_owned(), Some(answer)));
        answers
    }

    fn event(sequence: u64, unix_ms: u64) -> AgentEvent {
        AgentEvent {
            sequence,
            unix_ms,
            kind: "pod-added".to_owned(),
            text: "ü".repeat(TEXT_BYTES_MAX),
            ..AgentEvent::default()
        }
    }

    #[test]
    fn events_are_queried_once_and_the_latest_are_kept_in_any_order_of_answers() {
        let mut board = Board::default();
        let fresh = of_node("node-0", Vec::new(), vec![event(9, 5_000)]);
        board.observe(at(10), fresh, |_, _| None);
        let old = (1..=EVENTS_MAX as u64 + 5).map(|number| event(number, number));
        let old = of_node("node-1", Vec::new(), old.collect());
        let state = board.observe(at(10), old, |_, _| None);
        assert_eq!(board.sequence("node-1"), EVENTS_MAX as u64 + 5);
        // The node is absent now.
        assert_eq!(board.sequence("node-0"), 0);
        assert_eq!(state.events.len(), EVENTS_MAX);
        let first = &state.events[0];
        assert_eq!((first.unix_ms, &*first.about), (5_000, "node-0"));
        assert_eq!(first.text.len(), TEXT_BYTES_MAX);
        assert_eq!(state.events[1].unix_ms, EVENTS_MAX as u64 + 5);
        // A node with a clock ahead, and an agent restarted with a clock set back.
        let ahead = of_node("node-1", Vec::new(), vec![event(3, u64::MAX)]);
        let state = board.observe(at(11), ahead, |_, _| None);
        assert_eq!(
            (state.events[0].unix_ms, board.sequence("node-1")),
            (11_000, 3)
        );
    }

    #[test]
    fn an_agents_answer_is_bounded_and_a_slot_appears_once() {
        let mut board = Board::default();
        let long = "x".repeat(100_000);
        let slot = AgentSlot {
            slot: long.clone(),
            product: long.clone(),
            kind: long.clone(),
            lost: Some(long.clone()),
            recent: AgentRecent {
                busy_percent: vec![Some(1); 10_000],
            },
            ..AgentSlot::default()
        };
        let event = AgentEvent {
            kind: long.clone(),
            pod: Some(long),
            ..event(1, 1)
        };
        let answers = of_node("node-0", vec![slot.clone(), slot], vec![event]);
        let state = board.observe(at(1), answers, |_, _| None);
        assert_eq!(state.slots.len(), 1);
        assert_eq!(state.slots[0].busy.len(), CELLS_MAX);
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.len() < 4_000, "{}", text.len());
    }
}
