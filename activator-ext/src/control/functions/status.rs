//! The status of a GpuFunction, computed from the state of its variants, without input or output.

use std::collections::BTreeSet;
use std::time::Duration;

use policy::Span;
use policy::Time;
use policy::window::Window;
use serde_json::{Map, Value, json};

use crate::control::facts::Obstacle;

/// The two periods over which requests in time are counted.
const SPANS: [(&str, Span); 2] = [
    ("fiveMinutes", Span::from_secs(300)),
    ("hour", Span::from_secs(3_600)),
];

/// The state of a variant: a revision that a Route names, or the newest one of its Configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Variant {
    /// Name of the Knative Service, or of the Configuration if there is no Service.
    pub(super) owner: String,
    pub(super) revision: String,
    pub(super) version: String,
    pub(super) is_pipeline: bool,
    pub(super) uses_gpu: bool,
    pub(super) objective: Option<Duration>,
    /// Reason and message of Knative's condition Ready, if that is not True.
    pub(super) not_ready: Option<(String, String)>,
    /// Whether the variant is attached, and the obstacle to attaching it; `None` if it has not been reconciled yet.
    pub(super) attached: Option<(bool, Option<Obstacle>)>,
    /// Number of instances that the autoscaler requests.
    pub(super) wanted: u64,
    /// Number of instances that requests can be sent to.
    pub(super) ready: u64,
    /// Slots of the variant's instances, in the form `node/slot`.
    pub(super) slots: Vec<String>,
    /// The agents' texts on instances that they refuse.
    pub(super) refused: Vec<String>,
}

/// The state of a function.
#[derive(Debug, Default)]
pub(super) struct Function<'a> {
    pub(super) variants: Vec<Variant>,
    /// Number of ejected instances: they temporarily get no requests, since they failed.
    pub(super) ejected: u64,
    /// Number of agents that have not answered.
    pub(super) silent_agents: usize,
    pub(super) requests: Option<&'a Window>,
}

/// A condition: status `True`, `False` or `Unknown`, a reason and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    status: &'static str,
    reason: String,
    message: String,
}

impl Condition {
    fn new(status: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    fn is_true(&self) -> bool {
        self.status == "True"
    }
}

impl Function<'_> {
    /// Returns the status at `now`. Conditions that are unchanged from `old` keep their transition time; others get
    /// `clock`.
    pub(super) fn status(&self, now: Time, clock: &str, generation: i64, old: &Value) -> Value {
        let variants: Vec<_> = self.variants.iter().map(Variant::describe).collect();
        let sum = |count: fn(&Variant) -> u64| self.variants.iter().map(count).sum::<u64>();
        let slots: BTreeSet<_> = self.variants.iter().flat_map(|it| &it.slots).collect();
        let mut status = json!({
            "observedGeneration": generation,
            "variants": variants,
            "instances": {
                "wanted": sum(|it| it.wanted),
                "ready": sum(|it| it.ready),
                "ejected": self.ejected,
                "placed": sum(|it| it.slots.len() as u64),
            },
            "slots": slots,
            "conditions": self.conditions(clock, generation, &old["conditions"]),
        });
        // All requests have to meet the strictest objective.
        if let Some(objective) = self.variants.iter().filter_map(|it| it.objective).min() {
            status["objective"] = text(objective).into();
        }
        let mut in_time = Map::new();
        for (name, span) in SPANS {
            let counts = self.requests.map(|window| window.counts(now, span));
            if let Some(ratio) = counts.and_then(policy::window::Counts::ratio) {
                in_time.insert(name.to_owned(), ratio_text(ratio).into());
            }
        }
        if !in_time.is_empty() {
            status["inTime"] = in_time.into();
        }
        status
    }

    fn conditions(&self, clock: &str, generation: i64, old: &Value) -> Value {
        let (attached, placed) = (self.attached(), self.placed());
        let steered = Condition::new(
            "False",
            "Knative",
            "Knative's autoscaler decides how many instances there are",
        );
        let all = [
            ("Ready", self.ready(&attached, &placed)),
            ("Attached", attached),
            ("Placed", placed),
            ("ScalingSteered", steered),
        ];
        let old: Vec<_> = old.as_array().into_iter().flatten().collect();
        let all = all.into_iter().map(|(kind, condition)| {
            let before = old.iter().find(|it| it["type"] == kind);
            let same = before.filter(|it| it["status"] == condition.status);
            let since = same.and_then(|it| it["lastTransitionTime"].as_str());
            json!({
                "type": kind,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": since.unwrap_or(clock),
            })
        });
        all.collect()
    }

    fn ready(&self, attached: &Condition, placed: &Condition) -> Condition {
        for variant in &self.variants {
            if let Some((reason, message)) = &variant.not_ready {
                let reason = if reason.is_empty() {
                    "NotReady"
                } else {
                    reason
                };
                // Knative sets no message as long as nothing has failed.
                let text = if message.is_empty() {
                    reason
                } else {
                    message.as_str()
                };
                return Condition::new("False", reason, format!("{}: {text}", variant.revision));
            }
        }
        let wrong = [attached, placed].into_iter().find(|it| !it.is_true());
        wrong.cloned().unwrap_or_else(|| {
            Condition::new("True", "Serving", "its requests come to activator-ext")
        })
    }

    fn attached(&self) -> Condition {
        let mut unknown = None;
        for variant in &self.variants {
            let revision = &variant.revision;
            match variant.attached {
                Some((true, _)) => {}
                Some((false, obstacle)) => {
                    let (reason, text) = obstacle
                        .map_or(("Attaching", "it is being attached"), |it| {
                            (it.reason(), it.text())
                        });
                    return Condition::new("False", reason, format!("{revision}: {text}"));
                }
                None => unknown = Some(revision),
            }
        }
        match unknown {
            Some(revision) => Condition::new(
                "Unknown",
                "NotLookedAt",
                format!("{revision} has not been reconciled yet"),
            ),
            None => Condition::new("True", "Attached", "all variants are attached"),
        }
    }

    fn placed(&self) -> Condition {
        let on_gpus = || self.variants.iter().filter(|it| it.uses_gpu);
        if on_gpus().next().is_none() {
            return Condition::new("True", "NoGpu", "no variant uses a GPU");
        }
        let wanted: u64 = on_gpus().map(|it| it.wanted).sum();
        let placed: u64 = on_gpus().map(|it| it.slots.len() as u64).sum();
        if placed >= wanted {
            let message = format!("{placed} instances have a slot");
            return Condition::new("True", "Placed", message);
        }
        if let Some(refused) = on_gpus().flat_map(|it| &it.refused).next() {
            return Condition::new("False", "Refused", refused);
        }
        if self.silent_agents > 0 {
            let message = format!("{} agents do not answer", self.silent_agents);
            return Condition::new("Unknown", "AgentsSilent", message);
        }
        let message = format!("{placed} of {wanted} instances have a slot");
        Condition::new("False", "Waiting", message)
    }
}

impl Variant {
    fn describe(&self) -> Value {
        let attached = match self.attached {
            Some((true, _)) => "True",
            Some((false, _)) => "False",
            None => "Unknown",
        };
        let mut described = json!({
            "name": self.owner,
            "revision": self.revision,
            "kind": if self.is_pipeline { "pipeline" } else { "monolith" },
            "attached": attached,
            "instances": {
                "wanted": self.wanted,
                "ready": self.ready,
                "placed": self.slots.len(),
            },
        });
        if !self.version.is_empty() {
            described["version"] = self.version.as_str().into();
        }
        if let Some(objective) = self.objective {
            described["objective"] = text(objective).into();
        }
        described
    }
}

/// Returns a duration in the form used by annotations: `2s`, `250ms`, `1500us`.
fn text(duration: Duration) -> String {
    let us = duration.as_micros();
    if us.is_multiple_of(1_000_000) {
        format!("{}s", us / 1_000_000)
    } else if us.is_multiple_of(1_000) {
        format!("{}ms", us / 1_000)
    } else {
        format!("{us}us")
    }
}

/// Returns ten-thousandths as a decimal number in a string, since Kubernetes objects contain no floating point.
fn ratio_text(ratio: u32) -> String {
    format!("{}.{:04}", ratio / 10_000, ratio % 10_000)
}

#[cfg(test)]
mod tests {
    use policy::window::Counts;

    use super::*;

    fn variant() -> Variant {
        Variant {
            owner: "f".to_owned(),
            revision: "f-00001".to_owned(),
            objective: Some(Duration::from_millis(250)),
            attached: Some((true, None)),
            wanted: 2,
            ready: 2,
            ..Variant::default()
        }
    }

    fn conditions(function: &Function<'_>) -> Vec<(String, String, String)> {
        let status = function.status(Time::ZERO, "2026-01-01T00:00:00Z", 1, &Value::Null);
        let all = status["conditions"].as_array().unwrap().iter();
        let part = |it: &Value, key: &str| it[key].as_str().unwrap().to_owned();
        all.map(|it| (part(it, "type"), part(it, "status"), part(it, "reason")))
            .collect()
    }

    fn expected(all: [(&str, &str, &str); 4]) -> Vec<(String, String, String)> {
        all.map(|(kind, status, reason)| (kind.to_owned(), status.to_owned(), reason.to_owned()))
            .into()
    }

    #[test]
    fn a_function_is_ready_if_it_is_attached_and_placed() {
        let steered = ("ScalingSteered", "False", "Knative");
        let mut function = Function {
            variants: vec![variant()],
            ..Function::default()
        };
        let all = [
            ("Ready", "True", "Serving"),
            ("Attached", "True", "Attached"),
            ("Placed", "True", "NoGpu"),
            steered,
        ];
        assert_eq!(conditions(&function), expected(all));
        function.variants[0].uses_gpu = true;
        let waiting = [
            ("Ready", "False", "Waiting"),
            ("Attached", "True", "Attached"),
            ("Placed", "False", "Waiting"),
            steered,
        ];
        assert_eq!(conditions(&function), expected(waiting));
        function.silent_agents = 1;
        assert_eq!(conditions(&function)[2].1, "Unknown");
        function.variants[0].refused = vec!["f-1: no slot has the memory".to_owned()];
        function.variants[0].slots = vec!["n/0".to_owned()];
        assert_eq!(conditions(&function)[2].2, "Refused");
        // The instance refused before has a slot now.
        function.variants[0].slots.push("n/1".to_owned());
        assert_eq!(conditions(&function)[2].2, "Placed");
        function.variants[0].attached = Some((false, Some(Obstacle::NoOwner)));
        assert_eq!(conditions(&function)[1].2, "NoDataPodReady");
        function.variants[0].attached = None;
        assert_eq!(conditions(&function)[1].1, "Unknown");
        function.variants[0].not_ready = Some(("ExitCode1".to_owned(), "it ends".to_owned()));
        assert_eq!(conditions(&function)[0].2, "ExitCode1");
        function.variants[0].not_ready = Some(("Deploying".to_owned(), String::new()));
        let status = function.status(Time::ZERO, "2026-01-01T00:00:00Z", 1, &Value::Null);
        assert_eq!(status["conditions"][0]["message"], "f-00001: Deploying");
    }

    #[test]
    fn a_condition_keeps_its_transition_time_while_its_status_is_unchanged() {
        let function = Function {
            variants: vec![variant()],
            ..Function::default()
        };
        let first = function.status(Time::ZERO, "2026-01-01T00:00:00Z", 1, &Value::Null);
        let second = function.status(Time::ZERO, "2026-01-01T00:01:00Z", 1, &first);
        assert_eq!(first, second);
        let mut changed = variant();
        changed.attached = None;
        let function = Function {
            variants: vec![changed],
            ..Function::default()
        };
        let third = function.status(Time::ZERO, "2026-01-01T00:02:00Z", 1, &second);
        let since = |index: usize| third["conditions"][index]["lastTransitionTime"].clone();
        assert_eq!(since(1), "2026-01-01T00:02:00Z");
        assert_eq!(since(2), "2026-01-01T00:00:00Z");
    }

    #[test]
    fn the_ratio_in_time_is_reported_if_there_were_requests() {
        let mut window = Window::default();
        let minute = |minutes: u64| Time(minutes * Span::from_secs(60).0);
        let counts = |judged, in_time| Counts { judged, in_time };
        window.observe(minute(1), 0, counts(1_000, 500), true);
        window.observe(minute(20), 0, counts(2_000, 1_490), true);
        let function = Function {
            variants: vec![variant()],
            requests: Some(&window),
            ..Function::default()
        };
        let status = function.status(minute(20), "", 1, &Value::Null);
        assert_eq!(
            status["inTime"],
            json!({"fiveMinutes": "0.9900", "hour": "0.7450"})
        );
        assert_eq!(status["objective"], "250ms");
        let status = function.status(minute(200), "", 1, &Value::Null);
        assert_eq!(status["inTime"], Value::Null);
        assert_eq!(text(Duration::from_micros(1_500)), "1500us");
        assert_eq!(text(Duration::from_secs(60)), "60s");
        assert_eq!(ratio_text(10_000), "1.0000");
    }
}
