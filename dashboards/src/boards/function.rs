//! One function: why its requests miss the objective.

use super::{mean_by, own, quantile_by, rate_by};
use crate::grafana::{Board, Drawing, Panel, Row, Unit, Variable};
use crate::rules::chosen;

const OWN: &str = "namespace=\"$namespace\",function=\"$function\"";

/// `weir-function`.
pub(super) fn board() -> Board {
    let recorded = |name: &str| format!("{name}{{{OWN}}}");
    let judged = recorded("namespace_function:weir_requests_judged:increase5m");
    let missed = recorded("namespace_function:weir_requests_missed:increase5m");
    let objective = format!("max({})", own("weir_slo_objective_seconds", OWN));
    let percentile = format!("max({})", own("weir_slo_objective_ratio", OWN));
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
                        "Requests of the shown time that missed the objective, the most frequent reason first. cold-start: they came while no instance served. queue: they waited for their turn. execution: the application alone took longer than the objective, or longer than all else. refused: the queue was full. shed: late requests are shed here. timeout: a timeout ended them or their client left. failed: the application answered with a server error or broke off. load, lease, gate: the model, the slot or tokens were waited for.")
                        .query(format!("sort_desc({why} > 0.5)"), "{{reason}}").size(12, 8).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "In time, last five minutes", Unit::Ratio,
                        "Judged requests that met the objective. Compare with the percentile beside it.")
                        .query(format!("1 - {missed} / ({judged} > 0)"), "in time").base("red").threshold(0.9, "orange").threshold(0.98, "green").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Objective", Unit::Seconds,
                        "weir.dev/slo: latency from first arrival in Weir. None: the function has no objective, and nothing is judged.")
                        .query(&objective, "objective").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Percentile", Unit::Ratio,
                        "weir.dev/slo-percentile: the part of requests to be answered within the objective.")
                        .query(&percentile, "percentile").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Judged, last five minutes", Unit::Short,
                        "Requests that count for the objective. Few of them say little about a high percentile.")
                        .query(&judged, "judged").size(4, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Instances that serve", Unit::Short,
                        "Instances to which activator-ext sends requests. None while requests wait is a cold start.")
                        .query(format!("sum(max by (namespace, function, state) ({}))", own("weir_instances", &format!("{OWN},state=\"ready\""))), "ready").size(4, 4).link("weir-routing"),
                    Panel::new(Drawing::Stat, "Budget burn, last hour", Unit::Short,
                        "How many times faster than allowed the function misses: at 1 it uses up exactly its budget.")
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
                        "Hold in activator-ext, wait in the pod's queue, execution. The largest part is where to begin: hold and queue want capacity, execution wants a larger share of the GPU, another variant or another objective.")
                        .query(mean_by("", "weir_function_hold_seconds", OWN), "hold in activator-ext")
                        .query(mean_by("", "weir_queue_wait_seconds", OWN), "wait at the pod")
                        .query(mean_by("", "weir_execution_seconds", OWN), "execution").link("weir-sharing"),
                    Panel::new(Drawing::Lines, "Response at the pod against the objective", Unit::Seconds,
                        "Arrival at the pod to the end of the response. With the objective as a line: what is above it missed.")
                        .query(quantile_by(0.5, "", "weir_response_seconds", OWN), "p50")
                        .query(quantile_by(0.98, "", "weir_response_seconds", OWN), "p98")
                        .query(objective, "objective").link("weir-sharing"),
                    Panel::new(Drawing::Heatmap, "Execution", Unit::Seconds,
                        "Dispatch to the end of the response. Two bands are two kinds of requests, or a neighbour on the GPU that comes and goes.")
                        .query(rate_by("le", "weir_execution_seconds_bucket", OWN), "{{le}}").link("weir-sharing"),
                    Panel::new(Drawing::Lines, "Slack and lateness at dispatch", Unit::Seconds,
                        "How long before its latest start time a request is dispatched (the tightest tenth), and how long after it (the worst tenth). Slack near zero: the next burst will miss. Lateness: the queue is too long for the objective.")
                        .query(quantile_by(0.1, "", "weir_dispatch_slack_seconds", OWN), "slack, tightest tenth")
                        .query(quantile_by(0.9, "", "weir_dispatch_lateness_seconds", OWN), "lateness, worst tenth").link("weir-routing"),
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
                    Panel::new(Drawing::Stack, "Dispatched, by why it was their turn", Unit::RequestsPerSecond,
                        "free: a place was free. turn: the most urgent that waited. late: none that waited could still make it. ageing: a late one that had waited for very long. Many late ones: more instances, or weir.dev/late: shed.")
                        .query(rate_by("reason", "weir_dispatches_total", OWN), "{{reason}}").link("weir-routing"),
                    Panel::new(Drawing::Stack, "Requests at pods, by outcome", Unit::RequestsPerSecond,
                        "answered: by the application, whatever it said. refused: the queue was full. cancelled: the client left.")
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
                        "Wall time in which kernels of its pods ran, what they wanted, and what they may have. Used at the limit while more is asked: raise weir.dev/quota-limit or add an instance.")
                        .query(format!("sum({})", "rate(weir_gpu_used_seconds_total{OWN}[$__rate_interval])".replace("{OWN}", &format!("{{{OWN},job=~\"$job\",instance=~\"$instance\"}}"))), "used")
                        .query(format!("sum({})", own("weir_gpu_asked_ratio", OWN)), "asked")
                        .query(format!("sum({})", own("weir_gpu_quota_request_ratio", OWN)), "request")
                        .query(format!("sum({})", own("weir_gpu_quota_limit_ratio", OWN)), "limit").link("weir-sharing"),
                    Panel::new(Drawing::Lines, "Wait for a token", Unit::Seconds,
                        "Time from asking for a token to having it. Long waits with a small share used: other pods of the slot have it; see weir-sharing.")
                        .query(quantile_by(0.5, "", "weir_gpu_token_wait_seconds", OWN), "p50")
                        .query(quantile_by(0.98, "", "weir_gpu_token_wait_seconds", OWN), "p98").link("weir-sharing"),
                ],
            },
        ],
    }
}
