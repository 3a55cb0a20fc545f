//! One function: why its requests miss the objective.

use super::{mean_by, own, quantile_by, rate_by};
use crate::grafana::{Board, Drawing, Panel, Row, Unit, Variable};
use crate::rules::chosen;

const OWN: &str = "namespace=\"$namespace\",function=\"$function\"";

/// Returns the dashboard `weir-function`.
pub(super) fn board() -> Board {
    let recorded = |name: &str| format!("{name}{{{OWN}}}");
    let judged = recorded("namespace_function:weir_requests_judged:increase5m");
    let missed = recorded("namespace_function:weir_requests_missed:increase5m");
    let objective = format!("max({})", own("weir_slo_objective_seconds", OWN));
    let percentile = format!("max({})", own("weir_slo_objective_ratio", OWN));
    let sum = |metric: &str| rate_by("", &format!("{metric}_sum"), OWN);
    let waited = rate_by("", "weir_queue_wait_seconds_count", OWN);
    let why = chosen(
        "reason",
        "missed",
        "$__range",
        &format!("{OWN},job=~\"$job\",instance=~\"$instance\""),
    );
    Board {
        uid: "weir-function",
        title: "Weir / One function",
        description: "Why a function's requests miss its latency objective.",
        variables: vec![
            Variable::one("namespace", super::REQUESTS),
            Variable::one("function", "{__name__=~\"weir_(function_)?requests_total\",namespace=\"$namespace\"}"),
        ],
        rows: vec![
            Row {
                title: "Does it keep its objective, and if not, why?",
                panels: vec![
                    Panel::new(Drawing::Table, "Why missed", Unit::Short,
                        "Requests of the shown time that missed the objective, by reason, the most frequent reason first; estimated from scrapes, so not whole numbers. cold-start: no instance served; keep one (autoscaling.knative.dev/min-scale). queue: they waited for their turn, in activator-ext or at the pod; more instances, or a larger share of the GPU if it is used up. execution: the application was the largest part, or alone longer than the objective; see the time in parts. refused: the queue was full, or the revision went away. shed: late, and weir.dev/late is shed. timeout: a timeout ended them, or their client left. failed: a server error or a broken connection, however fast; read the application's log. load: they waited for the model. lease: for the slot. gate: for tokens.")
                        .query(format!("sort_desc({why} > 0.5)"), "{{reason}}").size(12, 8).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "In time, last five minutes", Unit::Ratio,
                        "Judged requests that were answered within the objective and without a server error. Below the percentile beside it the objective is missed; of fewer than 1/(1 - percentile) requests look at each miss.")
                        .query(format!("1 - {missed} / ({judged} > 0)"), "in time").base("red").threshold(0.9, "orange").threshold(0.98, "green").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Objective", Unit::Seconds,
                        "weir.dev/slo: the latency within which a request is to be answered without a server error, from its first arrival in Weir. None: the function has no objective, and nothing is judged.")
                        .query(&objective, "objective").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Percentile", Unit::Ratio,
                        "weir.dev/slo-percentile: the part of requests to be answered within the objective.")
                        .query(&percentile, "percentile").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Judged, last five minutes", Unit::Short,
                        "Requests that count for the objective. Few of them say little about a high percentile.")
                        .query(&judged, "judged").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Instances that serve", Unit::Short,
                        "Instances to which activator-ext sends requests now. None while requests wait: a cold start is under way. Their course is below.")
                        .query(format!("sum(max by (namespace, function, state) ({}))", own("weir_instances", &format!("{OWN},state=\"ready\""))), "ready").size(4, 4).link("weir-routing"),
                    Panel::new(Drawing::Stat, "Budget burn, last hour", Unit::Short,
                        "How many times faster than allowed the function misses: at 1 it uses up exactly its budget; at most 1/(1 - percentile), 50 at 98 %, where every request misses.")
                        .query(format!("{} / ({} > 0) / on (namespace, function) {}", recorded("namespace_function:weir_requests_missed:increase1h"), recorded("namespace_function:weir_requests_judged:increase1h"), recorded("namespace_function:weir_slo_budget:ratio")), "burn")
                        .threshold(1.0, "orange").threshold(6.0, "red").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stack, "Misses by reason", Unit::Short,
                        "Requests of five minutes that missed the objective. A change of reason shows what changed first.")
                        .query(recorded("namespace_function_reason:weir_requests_missed:increase5m"), "{{reason}}").link("weir-fleet"),
                    Panel::new(Drawing::Lines, "In time against the percentile", Unit::Ratio,
                        "Below the percentile the error budget is being used up faster than planned.")
                        .query(format!("1 - {missed} / ({judged} > 0)"), "in time").query(percentile, "percentile").link("weir-fleet"),
                ],
            },
            Row {
                title: "A request's time against its objective",
                panels: vec![
                    Panel::new(Drawing::Stack, "Mean time in parts", Unit::Seconds,
                        "Hold in activator-ext and wait in the pod's queue are reason queue, or cold-start; lease is the wait for the pod's turn on its GPU, load that for its model from host memory; execution is the time at the application, waits for tokens included. The largest part is where to begin: hold and wait want more instances, lease and load fewer functions a GPU, execution a larger share of the GPU, another variant or another objective.")
                        .query(mean_by("", "weir_function_hold_seconds", OWN), "hold in activator-ext")
                        .query(
                            format!("({} - {} - {}) / {waited}", sum("weir_queue_wait_seconds"), sum("weir_lease_wait_seconds"), sum("weir_load_wait_seconds")),
                            "wait at the pod",
                        )
                        .query(format!("{} / {waited}", sum("weir_lease_wait_seconds")), "lease")
                        .query(format!("{} / {waited}", sum("weir_load_wait_seconds")), "load")
                        .query(mean_by("", "weir_execution_seconds", OWN), "execution").link("weir-sharing"),
                    Panel::new(Drawing::Lines, "Response at the pod against the objective", Unit::Seconds,
                        "Arrival at the pod to the end of the response, without the hold in activator-ext; interpolated from buckets. Above the objective's line requests missed; below it they may still have, by hold or by an error.")
                        .query(quantile_by(0.5, "", "weir_response_seconds", OWN), "p50")
                        .query(quantile_by(0.98, "", "weir_response_seconds", OWN), "p98")
                        .query(objective, "objective").link("weir-sharing"),
                    Panel::new(Drawing::Heatmap, "Execution", Unit::Seconds,
                        "Dispatch to the end of the response. Two bands are two kinds of requests, or a neighbour on the GPU that comes and goes.")
                        .query(rate_by("le", "weir_execution_seconds_bucket", OWN), "{{le}}").link("weir-sharing"),
                    Panel::new(Drawing::Lines, "Slack and lateness at dispatch", Unit::Seconds,
                        "The latest start time is the deadline less the estimated execution. Slack: how long before it the tightest tenth was dispatched at the pod; near zero the next burst will miss. Lateness: how long after it the worst tenth was. With a queue capacity is short; without one execution alone is longer than the objective.")
                        .query(quantile_by(0.1, "", "weir_dispatch_slack_seconds", OWN), "slack, tightest tenth")
                        .query(quantile_by(0.9, "", "weir_dispatch_lateness_seconds", OWN), "lateness, worst tenth").link("weir-routing"),
                ],
            },
            Row {
                title: "Instances",
                panels: vec![
                    Panel::new(
                        Drawing::Stack,
                        "Instances by state",
                        Unit::Short,
                        "ready: activator-ext sends requests there. ejected: it did not answer, and gets none for a while. probing: it has yet to answer. None at all: the function was at zero, and the next request is a cold start.",
                    )
                    .query(
                        format!(
                            "sum by (state) (max by (namespace, function, state) ({}))",
                            own("weir_instances", OWN)
                        ),
                        "{{state}}",
                    )
                    .link("weir-routing"),
                    Panel::new(
                        Drawing::Lines,
                        "Cold starts",
                        Unit::Seconds,
                        "How long requests were held that came while no instance served: from arrival to the choice of an instance, image, application and model included. Longer than the objective: keep an instance.",
                    )
                    .query(quantile_by(0.5, "", "weir_cold_start_seconds", OWN), "p50")
                    .query(quantile_by(0.98, "", "weir_cold_start_seconds", OWN), "p98")
                    .link("weir-routing"),
                ],
            },
            Row {
                title: "Queue and dispatch",
                panels: vec![
                    Panel::new(Drawing::Lines, "Running and waiting", Unit::Short,
                        "Requests at user containers, in the queues of pods and in activator-ext. Waiting beside a free place does not happen; waiting that grows is load above capacity.")
                        .query(format!("sum({})", own("weir_requests_running", OWN)), "running")
                        .query(format!("sum({})", own("weir_requests_waiting", OWN)), "waiting at pods")
                        .query(format!("sum({})", own("weir_function_waiting", OWN)), "waiting in activator-ext").link("weir-routing"),
                    Panel::new(Drawing::Stack, "Dispatched, by reason", Unit::RequestsPerSecond,
                        "At the pod. free: a place was free on arrival, also for a late request or one that activator-ext had held. turn: the most urgent waiting request. late: no waiting request could still be in time. ageing: a late request that had waited very long. Many late ones: more instances, or weir.dev/late: shed.")
                        .query(rate_by("reason", "weir_dispatches_total", OWN), "{{reason}}").link("weir-routing"),
                    Panel::new(Drawing::Stack, "Requests at pods, by outcome", Unit::RequestsPerSecond,
                        "answered: by the application, with any status; its server errors miss the objective as well. failed: it could not be reached, or broke off. refused: the queue was full, or the revision went away. shed: late. cancelled: the client left.")
                        .query(rate_by("outcome", "weir_requests_total", OWN), "{{outcome}}").link("weir-health"),
                    Panel::new(Drawing::Stack, "Requests by revision and variant", Unit::RequestsPerSecond,
                        "Where requests went. A new revision with other times explains a step in the panels above.")
                        .query(rate_by("revision, variant", "weir_requests_total", OWN), "{{revision}} {{variant}}").link("weir-routing"),
                ],
            },
            Row {
                title: "GPU",
                panels: vec![
                    Panel::new(Drawing::Lines, "Share of the GPU", Unit::Ratio,
                        "Wall time in which kernels of its pods ran, what they wanted (at most the limit), and what they may have. Used near the limit with waits for tokens beside it: the limit slows it down; raise weir.dev/quota-limit or add an instance. No data: the function has no pod on a GPU that Weir shares.")
                        .query(format!("sum({})", "rate(weir_gpu_used_seconds_total{OWN}[$__rate_interval])".replace("{OWN}", &format!("{{{OWN},job=~\"$job\",instance=~\"$instance\"}}"))), "used")
                        .query(format!("sum({})", own("weir_gpu_asked_ratio", OWN)), "asked")
                        .query(format!("sum({})", own("weir_gpu_quota_request_ratio", OWN)), "request")
                        .query(format!("sum({})", own("weir_gpu_quota_limit_ratio", OWN)), "limit").link("weir-sharing"),
                    Panel::new(Drawing::Lines, "Wait for a token", Unit::Seconds,
                        "Time from the request for a token to its grant, one value per token; a part of execution. Long waits with used near the limit: its own limit. Long waits far below the limit: other pods of the slot; see weir-sharing.")
                        .query(quantile_by(0.5, "", "weir_gpu_token_wait_seconds", OWN), "p50")
                        .query(quantile_by(0.98, "", "weir_gpu_token_wait_seconds", OWN), "p98").link("weir-sharing"),
                ],
            },
        ],
    }
}
