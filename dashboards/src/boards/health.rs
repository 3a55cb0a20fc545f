//! Health: Weir's own programs.

use super::{own, quantile_by, rate_by};
use crate::grafana::{Board, Drawing, Panel, Row, Unit};

/// Returns the dashboard `weir-health`.
pub(super) fn board() -> Board {
    Board {
        uid: "weir-health",
        title: "Weir / Health of Weir itself",
        description: "Whether Weir's own programs run, are of one version, and can do their work.",
        variables: Vec::new(),
        rows: vec![
            Row {
                title: "Programs",
                panels: vec![
                    Panel::new(Drawing::Stat, "Targets down", Unit::Short,
                        "Programs that Prometheus cannot read. Look at the pods of that job.")
                        .query(format!("count({} == 0) or vector(0)", own("up", "job=~\"weir-system/weir-.*\"")), "down").threshold(1.0, "red").size(6, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Versions", Unit::Short,
                        "Different builds that run. More than one for longer than a roll-out: a revision still has an old queue-proxy.")
                        .query(format!("count(count by (version) ({}))", own("weir_build_info", "")), "versions").threshold(2.0, "orange").size(6, 4).link("weir-fleet"),
                    Panel::new(Drawing::Stat, "Leaders of control", Unit::Short,
                        "Exactly one process of role control leads. None: nothing is attached, detached or described until one does.")
                        .query(format!("sum({})", own("weir_control_leader", "")), "leaders").base("red").threshold(1.0, "green").threshold(2.0, "red").size(6, 4).link("weir-routing"),
                    Panel::new(Drawing::Stat, "Nodes where NVML is silent", Unit::Short,
                        "Agents that cannot ask NVML: slots, memory and losses are not known there.")
                        .query(format!("count({} == 0) or vector(0)", own("weir_gpu_agent_nvml_up", "")), "silent").threshold(1.0, "red").size(6, 4).link("weir-slots"),
                    Panel::new(Drawing::Lines, "Targets up, by job", Unit::Short,
                        "A job that vanishes: its pods are gone, or no monitor selects them.")
                        .query(format!("sum by (job) ({})", own("up", "job=~\"weir-system/weir-.*\"")), "{{job}}").link("weir-fleet"),
                    Panel::new(Drawing::Table, "Builds", Unit::Short,
                        "How many processes run which build. An old one that stays is a revision whose pods have not been replaced.")
                        .query(format!("count by (job, version) ({})", own("weir_build_info", "")), "").link("weir-fleet"),
                    Panel::new(Drawing::Lines, "CPU of proxies and activators", Unit::Short,
                        "Cores, per job. A queue-proxy costs about 20 µs a request.")
                        .query(rate_by("job", "weir_process_cpu_seconds_total", ""), "{{job}}").link("weir-fleet"),
                    Panel::new(Drawing::Lines, "CPU of agents", Unit::Short,
                        "Cores of each agent, and of its token service alone. A service that is short of CPU lets GPUs idle.")
                        .query(rate_by("instance", "weir_gpu_agent_cpu_seconds_total", ""), "{{instance}} all")
                        .query(rate_by("instance", "weir_gpu_agent_service_cpu_seconds_total", ""), "{{instance}} service").link("weir-slots"),
                ],
            },
            Row {
                title: "What goes wrong",
                panels: vec![
                    Panel::new(Drawing::Stack, "Pods refused by agents", Unit::PerSecond,
                        "The pod's own events say which annotation or which lack of room.")
                        .query(rate_by("reason", "weir_gpu_pods_refused_total", ""), "{{reason}}").link("weir-slots"),
                    Panel::new(Drawing::Lines, "Options that cannot be used", Unit::Short,
                        "Annotations that a queue-proxy could not use; its log names them, and the defaults hold.")
                        .query(format!("sum by (namespace, function) ({})", own("weir_option_problems_total", "")), "{{namespace}}/{{function}}").threshold(1.0, "orange").link("weir-function"),
                    Panel::new(Drawing::Lines, "Deadline headers that cannot be used", Unit::PerSecond,
                        "Clients or gateways that send Weir-Budget-Ms, grpc-timeout or Envoy's timeout in a form that is none.")
                        .query(rate_by("namespace, function", "weir_unusable_deadline_headers_total", ""), "{{namespace}}/{{function}}").link("weir-function"),
                    Panel::new(Drawing::Lines, "Certificates not reloaded", Unit::PerSecond,
                        "A changed certificate that cannot be used: the old one serves until it expires.")
                        .query(rate_by("job", "weir_certificate_reload_failures_total", ""), "{{job}}").threshold(0.001, "red").link("weir-routing"),
                    Panel::new(Drawing::Lines, "Log lines dropped", Unit::PerSecond,
                        "Standard output did not take them in time: the collector of logs is slow.")
                        .query(rate_by("job", "weir_log_lines_dropped_total", ""), "{{job}}").link("weir-routing"),
                    Panel::new(Drawing::Lines, "View of the cluster", Unit::PerSecond,
                        "Failures to read the Kubernetes API, and objects that cannot be used. Meanwhile the last view stays in use.")
                        .query(rate_by("reason", "weir_view_failures_total", ""), "data: {{reason}}")
                        .query(format!("sum({})", "rate(weir_control_watch_failures_total{job=~\"$job\",instance=~\"$instance\"}[$__rate_interval])"), "control: watch").link("weir-routing"),
                    Panel::new(Drawing::Lines, "Answers of the webhooks, p99", Unit::Seconds,
                        "Time in control itself; beyond 10 ms it is short of CPU. The API server adds its own.")
                        .query(quantile_by(0.99, "source", "weir_control_webhook_seconds", ""), "{{source}}").threshold(0.01, "orange").link("weir-routing"),
                    Panel::new(Drawing::Lines, "Reconciles", Unit::PerSecond,
                        "Revisions that control looked at. failed ones are tried again; the log says why.")
                        .query(rate_by("outcome", "weir_control_reconciles_total", ""), "{{outcome}}").link("weir-routing"),
                    Panel::new(Drawing::Lines, "Connections tried again", Unit::PerSecond,
                        "Requests sent once more since the user container had closed its connection: a keep-alive shorter than the proxy's.")
                        .query(rate_by("namespace, function", "weir_upstream_retries_total", ""), "{{namespace}}/{{function}}").link("weir-function"),
                    Panel::new(Drawing::Lines, "Malformed messages to agents", Unit::PerSecond,
                        "A process on an agent's socket that does not speak the protocol.")
                        .query(rate_by("instance", "weir_gpu_agent_malformed_messages_total", ""), "{{instance}}").link("weir-slots"),
                ],
            },
        ],
    }
}
