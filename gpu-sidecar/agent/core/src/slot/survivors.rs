//! Processes of an earlier agent, and the freeze after the start: nothing is granted on a slot before each of them has greeted
//! or died; one that stays silent counts as a holder until it is dead (invariant 6).

use policy::tokens::PodId;

use super::{Context, SlotState};
use crate::action::{Action, Level};
use crate::event::ProcessRecord;
use crate::event_kind::EventKind;
use crate::pods::PodKey;

/// Longest time that a slot waits after the start of the agent for processes of an earlier agent to greet, in nanoseconds.
pub(super) const HELLO_MAX_NS: u64 = 2_000_000_000;
/// Time after the start of the agent for the pods themselves to be found, in nanoseconds.
pub(super) const FIRST_LOOK_NS: u64 = 300_000_000;

impl SlotState {
    /// Asks the caller to examine all silent processes.
    pub(super) fn examine_survivors(&self, cx: &mut Context<'_>) {
        for pod in self.pods.values() {
            for survivor in pod.survivors() {
                cx.actions.push(Action::ExamineSurvivor {
                    pod: pod.key(),
                    record: survivor.record,
                });
            }
        }
    }

    /// Handles the end of a silent process.
    pub(crate) fn survivor_ended(
        &mut self,
        cx: &mut Context<'_>,
        pod: PodKey,
        record: ProcessRecord,
    ) {
        let Some(served) = self.pods.get_mut(&pod) else {
            return;
        };
        let Some(survivor) = served.remove_survivor(record, cx.now) else {
            return;
        };
        if let Some(stand_in) = survivor.stand_in {
            self.update(cx, |tokens, now, actions| {
                tokens.remove_process(now, stand_in, actions);
            });
            cx.numbers.release(stand_in);
        }
        self.end_freeze_early();
        self.write_roster(cx, pod);
    }

    /// Ends the freeze early, once all processes of an earlier agent have greeted or died.
    pub(super) fn end_freeze_early(&mut self) {
        let has_survivors = self.pods.values().any(|pod| !pod.survivors().is_empty());
        if !has_survivors
            && let Some(device) = &mut self.device
            && let Some(until) = &mut device.frozen_until
        {
            *until = (*until).min(device.first_look_until);
        }
    }

    /// Ends the freeze at its deadline: processes which have not greeted by then count as holders.
    pub(super) fn thaw(&mut self, cx: &mut Context<'_>) {
        let until = self.device.as_ref().and_then(|device| device.frozen_until);
        if until.is_none_or(|until| cx.now < until) {
            return;
        }
        self.count_survivors(cx);
        let Some(device) = &mut self.device else {
            return;
        };
        device.frozen_until = None;
        let early = std::mem::take(&mut device.early_requests);
        self.update(cx, |tokens, now, actions| {
            for id in early {
                tokens.ask(now, id, actions);
            }
        });
    }

    /// Counts the silent processes of an earlier agent as holders.
    pub(super) fn count_survivors(&mut self, cx: &mut Context<'_>) {
        let key = self.key;
        let mut counted = Vec::new();
        for pod in self.pods.values_mut() {
            let id = pod.id();
            let own = pod.count_survivors(cx.now, || cx.numbers.take(key));
            counted.extend(own.into_iter().map(|(number, record)| (number, id, record)));
        }
        for (_, pod, record) in &counted {
            let text = format!(
                "process {} was started before the agent and has not greeted it: it counts as a holder until it ends",
                record.pid
            );
            self.record(cx, EventKind::ProcessReport, PodKey(pod.0), text);
        }
        let sm_limit = self.sm_limit();
        let mut refused = Vec::new();
        self.update(cx, |tokens, now, actions| {
            for (id, pod, record) in counted {
                let sm = record.sm_hundredths.clamp(1, sm_limit);
                if let Err(refusal) = tokens.add_process(now, id, pod, sm, true, actions) {
                    refused.push((pod, refusal));
                }
            }
        });
        for (pod, refusal) in refused {
            cx.actions.push(rejected(pod, &refusal));
        }
    }

    pub(super) fn sm_limit(&self) -> u32 {
        let device = self.device.as_ref();
        device.map_or(1, |device| device.tokens.settings().sm_limit)
    }
}

/// Returns the log line of a process which the scheduler rejects.
pub(super) fn rejected(pod: PodId, refusal: &policy::tokens::Refusal) -> Action {
    Action::Log {
        level: Level::Error,
        subject: format!("pod {}", pod.0),
        text: format!("the scheduler rejects a process: {refusal}"),
    }
}
