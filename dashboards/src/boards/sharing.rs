//! Sharing: the limits, the demand and the use of the pods of a slot.

use super::{own, quantile_by, rate_by};
use crate::grafana::{Board, Drawing, Panel, Row, Unit, Variable};

const OWN: &str = "gpu=~\"$gpu\",slot=~\"$slot\",namespace=~\"$namespace\"";
const BY: &str = "namespace, function, slot, gpu";
const LEGEND: &str = "{{namespace}}/{{function}} on {{slot}}";

/// Returns the dashboard `weir-sharing`.
pub(super) fn board() -> Board {
    let sum = |metric: &str| format!("sum by ({BY}) ({})", own(metric, OWN));
    let rate = |metric: &str| rate_by(BY, metric, OWN);
    Board {
        uid: "weir-sharing",
        title: "Weir / Sharing of GPUs",
        description: "What functions that share a slot may have of it, want and get.",
        variables: vec![
            Variable::all("gpu", "weir_gpu_pods"),
            Variable::all("slot", "weir_gpu_pods{gpu=~\"$gpu\"}"),
            Variable::all("namespace", "weir_gpu_pods"),
        ],
        rows: vec![
            Row {
                title: "Enforced against achieved",
                panels: vec![
                    Panel::new(Drawing::Lines, "Used", Unit::Ratio,
                        "Share of wall time in which kernels ran: what each function got. A function below its request that asks for more is starved.")
                        .query(rate("weir_gpu_used_seconds_total"), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Lines, "Demand", Unit::Ratio,
                        "Share of wall time in which its pods wanted to compute, up to their limit.")
                        .query(sum("weir_gpu_asked_ratio"), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Lines, "Used of the limit", Unit::Ratio,
                        "At 1 a function gets all that it may have. Above 1.1 the limit does not hold: see ungated time.")
                        .query(format!("{} / {}", rate("weir_gpu_used_seconds_total"), sum("weir_gpu_quota_limit_ratio")), LEGEND).threshold(1.1, "red").link("weir-function"),
                    Panel::new(Drawing::Lines, "Charged beyond use", Unit::Ratio,
                        "Share of wall time charged to quotas without a kernel: idle time of held tokens, and unreported work of processes that ended or did not answer; below zero while they report it.")
                        .query(format!("{} - {}", rate("weir_gpu_charged_seconds_total"), rate("weir_gpu_used_seconds_total")), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Lines, "Used share of the request", Unit::Ratio,
                        "At 1 a function gets all that it wants. Low: others of the slot have it; raise its request or place it elsewhere.")
                        .query(format!("{} / ({} > 0)", rate("weir_gpu_used_seconds_total"), sum("weir_gpu_asked_ratio")), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Table, "Quotas", Unit::Ratio,
                        "What each function is guaranteed, may have at most, and which part of the SMs its processes may use.")
                        .query(sum("weir_gpu_quota_request_ratio"), "request").query(sum("weir_gpu_quota_limit_ratio"), "limit").query(sum("weir_gpu_sm_ratio"), "SMs").link("weir-function"),
                    Panel::new(Drawing::Lines, "Device memory", Unit::Bytes,
                        "Memory that pods hold. At the limit allocations are refused.")
                        .query(sum("weir_gpu_memory_used_bytes"), "{{namespace}}/{{function}} on {{slot}} used")
                        .query(sum("weir_gpu_memory_limit_bytes"), "{{namespace}}/{{function}} on {{slot}} limit").link("weir-slots"),
                ],
            },
            Row {
                title: "Tokens",
                panels: vec![
                    Panel::new(Drawing::Lines, "Wait for a token, p98", Unit::Seconds,
                        "Time from the request for a token to its grant. It bounds how soon a request's first kernel starts.")
                        .query(quantile_by(0.98, BY, "weir_gpu_token_wait_seconds", OWN), LEGEND).link("weir-slots"),
                    Panel::new(Drawing::Lines, "Granted", Unit::Ratio,
                        "Share of wall time with a token. Much above used: programs hold tokens without work.")
                        .query(rate("weir_gpu_given_seconds_total"), LEGEND).link("weir-slots"),
                    Panel::new(Drawing::Lines, "Held without work while others waited", Unit::Ratio,
                        "Charged to the function's quota. Much of it: the program synchronises after every small kernel.")
                        .query(rate("weir_gpu_held_idle_seconds_total"), LEGEND).link("weir-slots"),
                    Panel::new(Drawing::Lines, "Debt", Unit::Seconds,
                        "Time used beyond the quota and not yet paid back: one long kernel makes it, and it is paid by waiting.")
                        .query(sum("weir_gpu_debt_seconds"), LEGEND).link("weir-slots"),
                    Panel::new(Drawing::Lines, "Work after a token's end", Unit::Ratio,
                        "Share of time in which work was in flight after its token had ended: kernels longer than the slice.")
                        .query(rate("weir_gpu_token_overrun_seconds_total"), LEGEND).link("weir-slots"),
                    Panel::new(
                        Drawing::Lines,
                        "Launches",
                        Unit::PerSecond,
                        "Kernels, graphs and cooperative launches a second. None while requests run: the program does not use the GPU, or the library is not loaded.",
                    )
                    .query(rate("weir_gpu_launches_total"), LEGEND)
                    .link("weir-function"),
                    Panel::new(
                        Drawing::Lines,
                        "Processes connected",
                        Unit::Short,
                        "Processes whose library is connected to the agent. Fewer than pods: a program has not yet made a CUDA context, or runs without the library.",
                    )
                    .query(sum("weir_gpu_processes"), LEGEND)
                    .link("weir-function"),
                    Panel::new(Drawing::Lines, "Threads at gates", Unit::Short,
                        "Threads that wait for a token at this moment.")
                        .query(sum("weir_gpu_parked_threads"), LEGEND).link("weir-slots"),
                ],
            },
            Row {
                title: "What does not hold",
                panels: vec![
                    Panel::new(Drawing::Lines, "Ungated", Unit::Ratio,
                        "Share of time for which gates stood open without an agent: quotas did not hold. The agent was away or hung.")
                        .query(rate("weir_gpu_ungated_seconds_total"), LEGEND).threshold(0.01, "red").link("weir-health"),
                    Panel::new(Drawing::Lines, "Refused allocations", Unit::PerSecond,
                        "Allocations beyond weir.dev/gpu-memory. The program got CUDA's out-of-memory error.")
                        .query(rate("weir_gpu_refused_allocations_total"), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Stack, "Tokens taken back", Unit::PerSecond,
                        "idle: nothing was in flight while others waited. unresponsive: the process did not answer.")
                        .query(rate_by("reason", "weir_gpu_tokens_revoked_total", OWN), "{{reason}}").link("weir-slots"),
                    Panel::new(Drawing::Stack, "Refused connections", Unit::PerSecond,
                        "Processes that the agent did not serve, by reason. no-mps: the slot's MPS daemon does not run. wrong-device: the program does not use the pod's GPU.")
                        .query(rate_by("reason", "weir_gpu_refused_connections_total", OWN), "{{reason}}").link("weir-health"),
                    Panel::new(Drawing::Table, "Driver functions that the library does not know", Unit::Short,
                        "Looked up by programs and passed through unwrapped. Report them; if one launches kernels, its time is not gated.")
                        .query(format!("sum by ({BY}) (increase({}[$__range])) > 0 or vector(0)", own("weir_gpu_unknown_symbols_total", OWN)), "").link("weir-health"),
                    Panel::new(Drawing::Lines, "Bound of work in flight exceeded", Unit::PerSecond,
                        "Times at which a process had more work in flight than its bound: others wait longer for their token.")
                        .query(rate("weir_gpu_inflight_bound_exceeded_total"), LEGEND).link("weir-slots"),
                ],
            },
        ],
    }
}
